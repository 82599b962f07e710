"""The send queue."""

from hypothesis import given
from hypothesis import strategies as st

from edged.uplink.send_queue import PageLocation, SendQueue


def place(seq, stream="s", partition=0, file="f", length=10):
    return PageLocation(stream, partition, seq, file, seq * 100, length)


_ops = st.one_of(
    st.tuples(
        st.just("offer"), st.integers(0, 1), st.integers(1, 12), st.sampled_from("abc"),
        st.integers(1, 50),
    ),
    st.tuples(st.just("acked"), st.integers(0, 1), st.integers(0, 12)),
)  # fmt: skip


@given(st.lists(_ops, max_size=40), st.integers(1, 200))
def test_it_is_a_sorted_map_without_what_was_acked(ops, room):
    backlog, model, acked = SendQueue(), {}, {0: 0, 1: 0}
    for kind, partition, seq, *more in ops:
        if kind == "offer":
            p = place(seq, partition=partition, file=more[0], length=more[1])
            assert backlog.offer(p) == (seq > acked[partition])
            if seq > acked[partition]:
                model[partition, seq] = p
        else:
            gone = [k for k in model if k[0] == partition and k[1] <= seq]
            assert backlog.acked("s", partition, seq) == len(gone)
            for k in gone:
                del model[k]
            if any(k == ("s", partition) for k in backlog.partitions):
                acked[partition] = max(acked[partition], seq)
    assert backlog.pages == len(model)
    assert backlog.bytes == sum(p.length for p in model.values())
    assert len(backlog._files) == len({p.file for p in model.values()})
    for part in backlog.partitions.values():
        mine = [model[k] for k in sorted(model) if k[0] == part.partition]
        fits = [p for i, p in enumerate(mine) if sum(q.length for q in mine[: i + 1]) <= room]
        assert list(backlog.first(part, room)) == (fits or mine[:1])
        assert len(part) == len(mine)


def test_a_long_run_keeps_memory_small():
    backlog = SendQueue()
    for seq in range(1, 20_001):
        backlog.offer(place(seq, file=f"f{seq // 100}"))
        if seq > 100:
            backlog.acked("s", 0, seq - 100)
    [part] = backlog.partitions.values()
    assert len(part) == 100 and len(part.seqs) < 5000 and len(backlog._files) <= 2
