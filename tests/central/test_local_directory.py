"""What looks like a URL is no directory of the centre."""

import pytest
from click.testing import CliRunner

from edged.central.cli_aggregate import command as aggregate
from edged.central.cli_collect import command as collect
from edged.central.datasource import EdgedDataSource
from edged.central.local_directory import local_directory
from edged.errors import ConfigError


@pytest.mark.parametrize("url", ["s3://bucket/landing", "hdfs:/a", "file:///srv/landing"])
def test_a_landing_that_is_a_url_is_refused_and_no_folder_is_made(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(collect, ["--landing", url])
    assert isinstance(done.exception, ConfigError)
    assert "--landing" in str(done.exception) and "is a URL" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--landing", "--output", "--checkpoint"])
def test_an_aggregation_refuses_urls_before_anything_else(option):
    places = {"--landing": "l", "--output": "o", "--checkpoint": "c", option: "s3a://bucket/x"}
    done = CliRunner().invoke(aggregate, ["no.toml", *(w for pair in places.items() for w in pair)])
    assert isinstance(done.exception, ConfigError)
    assert f"{option} s3a://bucket/x: is a URL" in str(done.exception)


def test_the_data_source_refuses_urls():
    with pytest.raises(ConfigError, match="option landing s3://bucket/x: is a URL"):
        EdgedDataSource({"landing": "s3://bucket/x", "stream": "curve@1"}).schema()


@pytest.mark.parametrize("path", ["landing", "/srv/a:b/c", "./x:/y", "C"])
def test_other_names_are_paths(path):
    assert local_directory(path, "--landing") == path
