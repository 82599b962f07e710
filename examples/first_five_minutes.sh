#!/usr/bin/env bash
# The first five minutes with edged, on one machine: two weeks of a wind farm's readings are joined
# by a daemon on a simulated board, land at a collector, and become a table in Spark.
#
#   bash examples/first_five_minutes.sh
#
# The commands are those of README.md; everything they write is in build/up.
set -euo pipefail
cd "${0%/*}/.."
rm -rf build/up
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

make setup
bash deploy/java.sh
. .venv/bin/activate
export EDGED_API=build/up/api.sock
edged up examples/power_curve.toml --board simulated:orin-nano &
edged send examples/readings.parquet --to 127.0.0.1:7400 --stream power \
  --producer power-1 --columns turbine,time,power_kw,pitch_deg
edged send examples/readings.parquet --to 127.0.0.1:7400 --stream wind \
  --producer wind-1 --columns turbine,time,wind_m_s,direction_deg,outdoor_c \
  --batch 288 --pace 43200x --json >build/up/wind.json &
if [ -t 1 ]; then
  edged top
else
  sleep 5
  edged top --once
fi
wait $!
edged jobs drain power_curve --wait
edged central aggregate examples/power_curve_tables.toml --landing build/up/landing \
  --output build/up/tables --checkpoint build/up/checkpoint
edged central table build/up/tables/power_curve
kill %1
wait
