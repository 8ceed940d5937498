import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from nodeagent.documents.plan import PLAN, plan_schema
from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from tests.draws import draws

VALIDATOR = Draft202012Validator(plan_schema())


def _keys_of(schema: object) -> Iterator[tuple[str, Any]]:
    """The keys of a document, however deep, with their own schemas; not what it refuses of them."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for word, value in schema.items():
            if word != "not":
                yield from _keys_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _keys_of(value)


KEYS = sorted({key for key, _ in _keys_of(PLAN.schema)})


def plan(**keys: object) -> dict[str, object]:
    return {"version": "v1", "gpus": [keys]}


def accepted(document: object) -> bool:
    try:
        read_document(json.dumps(document))
    except DocumentError:
        return False
    return True


def test_is_a_schema() -> None:
    Draft202012Validator.check_schema(plan_schema())
    assert json.loads(json.dumps(plan_schema())) == plan_schema()


def test_every_key_is_described() -> None:
    assert {"version", "gpus", "start", "memory", "threads"} <= set(KEYS)
    assert [key for key, schema in _keys_of(PLAN.schema) if not schema.get("description")] == []


GOOD = [
    plan(devices="all", mig="disabled"),
    plan(devices=[0, "1a:00.0", "GPU-8f6e2f4c-7d1b-4d0f-9f3a-2b6c5d4e3f2a"], mig="enabled"),
    plan(devices=[0], mig={"3g.40gb": 1, "1g.10gb+me": 1}, model="*H100*", whenInUse="evict"),
    plan(devices=[0], mig=[{"profile": "1c.3g.40gb", "start": 4, "count": 3}]),
    plan(devices=[0], mig=[{"profile": "3g.40gb", "mps": {"replicas": 2}}]),
    plan(devices=[0], mig={}, dra=False),
    plan(devices=[0], mig=[]),
    plan(devices=[0], mps={"clients": {"memory": "10Gi", "threads": 25.5}, "user": "1:1"}),
    plan(devices=[0], mps={"clients": {"memory": 1024}, "user": 0, "oversubscribe": True}),
    plan(devices=[0], mps={"shares": {"a": {"count": 2}, "b": {}}, "enforce": "terminate"}),
    plan(devices=[0], timeSlice="default"),
    {"version": "v1", "gpus": [], "devicePluginConfig": "shared-4"},
]


def test_good() -> None:
    for document in GOOD:
        assert accepted(document), document
        VALIDATOR.validate(document)


BAD = [
    {},
    [],
    {"version": "v1", "gpus": [], "devicePluginConfig": "a b"},
    {"version": "v1", "gpus": [], "devicePluginConfig": None},
    plan(mig={}),
    plan(devices=[-1], mig={}),
    plan(devices=[1.5], mig={}),
    plan(devices=["0"], mig={}),
    plan(devices=["MIG-1"], mig={}),
    plan(devices=["all"], mig={}),
    plan(devices=[0], mig=[{}]),
    plan(devices=[0], mig={}, whenInUse="kill"),
]


def test_bad() -> None:
    assert [document for document in BAD if accepted(document)] == []
    assert [document for document in BAD if VALIDATOR.is_valid(document)] == []


VALUES = st.sampled_from(
    ["all", "disabled", "enabled", "3g.40gb", "1c.3g.40gb", "8Gi", "1:1", "long", "evict", "report"]
) | st.integers(-1, 20)
TREES = st.recursive(
    VALUES | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "3g.40gb"]), inner, max_size=4)
    ),
    max_leaves=8,
)
MIG = (
    st.sampled_from(["disabled", "enabled"])
    | st.dictionaries(st.sampled_from(["3g.40gb", "1g.10gb", "x"]), st.integers(0, 9), max_size=3)
    | st.lists(st.fixed_dictionaries({"profile": st.just("3g.40gb")}, optional={"start": VALUES}))
)
ENTRIES = st.fixed_dictionaries(
    {"devices": st.just("all") | st.lists(VALUES, max_size=3), "mig": MIG | TREES},
    optional={
        "mps": TREES,
        "timeSlice": VALUES,
        "model": VALUES,
        "whenInUse": VALUES,
        "dra": VALUES | st.booleans(),
    },
)


@settings(max_examples=draws(300))
@given(ENTRIES)
def test_of_one_mind(entry: dict[str, object]) -> None:
    """What the reader takes, the schema takes; so what the schema refuses is refused."""
    document = plan(**entry)
    if accepted(document):
        VALIDATOR.validate(document)
