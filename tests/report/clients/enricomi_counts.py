"""Run by the Python of EnricoMi's action: what it counts in some files, and where its annotations are, as JSON."""

import json
import sys

sys.path.insert(0, sys.argv[1])

from publish import get_case_annotations
from publish.junit import parse_junit_xml_files, process_junit_xml_elems
from publish.unittestresults import get_stats, get_test_results

parsed = process_junit_xml_elems(list(parse_junit_xml_files(sys.argv[2:], False, False)))
results = get_test_results(parsed.with_commit("0" * 40), False)
stats = get_stats(results)
counts = {
    "passed": stats.tests_succ, "skipped": stats.tests_skip, "failure": stats.tests_fail, "error": stats.tests_error,
}  # fmt: skip
places = [[each.path, each.start_line] for each in get_case_annotations(results.case_results, False)]
print(json.dumps({"counts": {word: count for word, count in counts.items() if count}, "places": places}))
