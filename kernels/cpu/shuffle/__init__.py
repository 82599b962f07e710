"""The shuffle family: a stream of batches is partitioned into shared pages by many threads.

After J. Ladner, "Implementing an Efficient Shuffle Operator for Streaming Database Systems" (2025).
`memory` declares what lies where, `source` makes batches, `managers` give out space on pages,
`writing` writes tuples there, `buffers` are the software managed buffers, `lines` writes rows of
whole cache lines without them, and `on_demand`, `histograms`, `groups` and `merge` are the
algorithms.  A member of the family is one algorithm with one manager (`edged.pages.shuffle`).

The kernels are compiled when a member first runs, and then cached; `edged compile` passes over
them.
"""
