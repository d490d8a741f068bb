"""The stand-in for GitHub's evaluator: what it knows it knows as GitHub does, and nothing else passes."""

import pytest
from expressions import ExpressionError, Open, Scope, condition, evaluate, filled

CONTEXTS = {
    "github": {
        "run_attempt": "2",
        "event": Open(
            {
                "pull_request": {"head": {"repo": {"full_name": "fork/r"}}},
                "labels": [{"name": "ci-x"}, {"name": "y"}, {}],
            }
        ),
    },
    "inputs": {"name": "", "python": "3.13"},
    "matrix": {"gpus": 0, "hosted": False, "runs_on": ["self-hosted", "gpu"]},
    "needs": {"plan": {"result": "success", "outputs": {"matrix": '{"include": [{"slug": "a"}]}'}}},
}


def scope(status="success"):
    return Scope(
        CONTEXTS,
        {
            "always": True,
            "success": status == "success",
            "failure": status == "failure",
            "cancelled": status == "cancelled",
        },
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("inputs.name || 'allranks'", "allranks"),
        ("inputs.python != ''", True),
        ("!matrix.hosted && 'approval' || ''", "approval"),
        ("matrix.gpus == 0 || inputs.name != ''", True),
        ("matrix.gpus == '0'", True),
        ("null == ''", True),
        ("null == 0", True),
        ("'A' == 'a'", True),
        ("'a' == 0", False),
        ("!inputs.name && '--where backend=gloo' || inputs.name", "--where backend=gloo"),
        ("fromJSON(needs.plan.outputs.matrix).include", [{"slug": "a"}]),
        ("contains(matrix.runs_on, 'GPU')", True),
        ("contains('self-hosted', 'host')", True),
        ("github.event.pull_request.head.repo.full_name", "fork/r"),
        ("github.event.pull_request.base.repo.full_name", None),
        ("github.event.pull_request.head.repo.full_name != github.event.pull_request.base.repo.full_name", True),
        ("github.event['nothing'] == null", True),
        ("(1 < 2) && 'it''s'", "it's"),
        ("format('{0}/{1}', inputs.python, matrix.gpus)", "3.13/0"),
        ("startsWith('GHCR.io/owner', 'ghcr.io/')", True),
        ("toJSON(matrix.runs_on)", '[\n  "self-hosted",\n  "gpu"\n]'),
        ("github.event.labels.*.name", ["ci-x", "y"]),
        ("github.event.pull_request.labels.*.name", []),
    ],
)
def test_what_our_workflows_use_has_github_s_value(text, value):
    assert evaluate(text, scope()) == value


@pytest.mark.parametrize(
    "text",
    [
        "needs.plans.result",
        "needs.plan.outputs.matrixx",
        "inputs.pythn",
        "github.run_atempt",
        "secrets.TOKEN",
        "hashFiles('x')",
        "needs.*.result",
        "github.event.pull_request.*.name",
        "inputs.name |",
        "inputs.name 'a'",
        "(inputs.name",
        "",
        "matrix.gpus = 0",
    ],
)
def test_what_nobody_declared_is_an_error_and_not_null(text):
    with pytest.raises(ExpressionError):
        evaluate(text, scope())


@pytest.mark.parametrize(
    ("text", "success", "failure"),
    [
        (None, True, False),
        ("inputs.python != ''", True, False),
        ("always()", True, True),
        ("failure()", False, True),
        ("always() && inputs.name != ''", False, False),
        ("${{ !cancelled() }}", True, True),
    ],
)
def test_a_condition_without_a_status_function_needs_success(text, success, failure):
    assert condition(text, scope("success")) is success
    assert condition(text, scope("failure")) is failure


def test_status_functions_are_unknown_where_github_has_none():
    with pytest.raises(ExpressionError, match="always"):
        evaluate("always()", Scope(CONTEXTS))


def test_an_expression_that_is_all_of_a_string_keeps_its_type():
    assert filled({"a": ["${{ matrix.runs_on }}", "x-${{ matrix.gpus }}-${{ inputs.name }}"]}, scope()) == {
        "a": [["self-hosted", "gpu"], "x-0-"]
    }
