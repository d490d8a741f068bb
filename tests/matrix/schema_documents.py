"""Random documents for the schema of the matrix file: valid ones, and ones with a few changes."""

import copy

from hypothesis import strategies as st

PATHS = st.sampled_from(["tests", "more", "more/*.py", "tests/slow", "data.txt", ".", "no", "../x", "", "/tmp", "*"])
CONDITIONS = st.sampled_from(
    [
        "world_size > 1",
        "gpu_count == 0",
        "gpu_count > 0",
        "backend == 'gloo'",
        "backend == 'nccl'",
        "x",
        "",
        "torch > '2.1'",
    ]
)
OF_KEY = {
    **dict.fromkeys(("path", "project", "requirements", "baseline"), PATHS),
    "when": CONDITIONS,
    "packages": st.lists(st.sampled_from(["numpy", "a>=2", "num py", ""]), max_size=2),
    "files": st.lists(PATHS, max_size=2),
    "exclude": st.lists(PATHS, max_size=1),
    "engine": st.sampled_from(["auto", "docker", "slurm"]),
    "name": st.sampled_from(["a", "b-2", "-", "a b"]),
}
SCALARS = st.one_of(
    st.sampled_from(
        ["gloo", "nccl", "mine", "env", "2.13.0", "2.14", "file", "skip", "default", "A", "auto", "", " ", "a,b"]
    ),
    st.integers(-1, 3),
    st.sampled_from(
        [256, 7200, 7201, 10_000, 10_001, 2**31 - 1, 2**31, 2**70, 0.5, 1.0, 1e300, float("nan"), float("inf")]
    ),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)
ANYTHING = st.recursive(
    SCALARS | CONDITIONS | PATHS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["when", "path", "set", "a"]), inner, max_size=2)
    ),
    max_leaves=3,
)


_VISIBLE = st.characters(codec="ascii", min_codepoint=33, exclude_characters="\x7f")


def documents(schema: dict, right: dict) -> st.SearchStrategy:
    """A valid document with one of its tables replaced by another valid one."""
    tables = _DocumentsOf()
    properties = schema["properties"]
    return st.sampled_from(sorted(properties)).flatmap(
        lambda name: tables.of(properties[name], name).map(lambda value: {**right, name: value})
    )


class _DocumentsOf:
    """Values that parts of a schema accept, for the few keywords that it uses."""

    def of(self, node: dict, name: str = "") -> st.SearchStrategy:
        if name in OF_KEY and node.get("type") != "object" and node.get("items", {}).get("type") != "object":
            return OF_KEY[name]
        if "anyOf" in node and "properties" not in node:
            return st.one_of([self.of(option, name) for option in node["anyOf"]])
        if "enum" in node:
            return st.sampled_from(node["enum"])
        strategy: st.SearchStrategy = getattr(self, f"_{node['type']}")(node)
        return strategy

    def _object(self, node: dict) -> st.SearchStrategy:
        properties, required = node.get("properties", {}), set(node.get("required", ()))
        if not properties:
            return self._named(node)
        all_of_them = {name: self.of(inner, name) for name, inner in properties.items()}
        optional = {name: strategy for name, strategy in all_of_them.items() if name not in required}
        return st.fixed_dictionaries({name: all_of_them[name] for name in required}, optional=optional)

    def _named(self, node: dict) -> st.SearchStrategy:
        values = self.of(node["additionalProperties"])
        return st.dictionaries(st.sampled_from(["A", "b_2"]), values, min_size=node.get("minProperties", 0), max_size=2)

    def _array(self, node: dict) -> st.SearchStrategy:
        least, unique = node.get("minItems", 0), repr if node.get("uniqueItems") else None
        return st.lists(self.of(node["items"]), min_size=least, max_size=least + 1, unique_by=unique)

    def _integer(self, node: dict) -> st.SearchStrategy:
        return st.integers(node["minimum"], node["minimum"] + 3) | st.just(node["maximum"])

    def _number(self, _node: dict) -> st.SearchStrategy:
        return st.sampled_from([1, 30, 50.5, 100, 1000, 2000])

    def _boolean(self, _node: dict) -> st.SearchStrategy:
        return st.booleans()

    def _string(self, node: dict) -> st.SearchStrategy:
        if node["pattern"] in ("\\S", ""):
            return st.sampled_from(["a", "x y", "tests"])
        return st.from_regex(node["pattern"], fullmatch=True, alphabet=_VISIBLE).filter(lambda text: len(text) < 64)


@st.composite
def mutated(draw: st.DrawFn, documents: st.SearchStrategy) -> dict:
    """A document with one or two of its values, keys or entries replaced, removed or added."""
    document = copy.deepcopy(draw(documents))
    for _ in range(draw(st.integers(1, 2))):
        place: dict | list = document
        while inner := [
            child
            for child in (place.values() if isinstance(place, dict) else place)
            if isinstance(child, dict | list) and child
        ]:
            if draw(st.integers(0, 3)) == 0:
                break
            place = draw(st.sampled_from(inner))
        if not place:
            continue
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        match draw(st.integers(0, 4)):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[draw(st.sampled_from([*OF_KEY, "torch", "image", "include", "a b", "RANK"]))] = place[key]
            case 2 if isinstance(place, list):
                place.append(copy.deepcopy(place[key]))
            case 3:
                place[key] = [place[key]]
            case _:
                place[key] = draw(OF_KEY[key] if key in OF_KEY and draw(st.booleans()) else ANYTHING)
    return document
