"""Properties of messages as hypothesis makes them up: right, odd and malformed."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.send_paths import properties

NAMES = st.sampled_from(["UNIQ_KEY", "TAGS", "WAIT", "KEYS", "DELAY", "TIMER_DELAY_MS", "TRAN_MSG", "POP_CK"])
PROPERTIES = st.one_of(
    st.lists(
        st.tuples(
            NAMES | st.sampled_from(["XTAGS", "MY_UNIQ_KEY", "RAFTMQ_SEQ", "RAFTMQ_SEQUENCE", "RAFTMQ_PRODUCER", "a"]),
            st.text('Ab0\x00\x01\x02_é"\\/\n', max_size=6),
        )
    ).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)),
    st.text("TAGS\x01\x02UNIQ_KEYab\x7f", max_size=40),
    # Names that occur more than once: the last one with a value counts.
    st.lists(
        st.tuples(st.sampled_from(["UNIQ_KEY", "TAGS", "TAGS", "KEYS"]), st.sampled_from(["", "A", "B", "TAGS\x01C"])),
        min_size=2,
        max_size=6,
    ).map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)),
    st.just(properties(UNIQ_KEY="0A0B0C", TAGS="TagB", KEYS="k")),
    st.just(properties(UNIQ_KEY="0A0B0C")[:-1]),
)
