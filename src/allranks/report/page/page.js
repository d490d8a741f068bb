"use strict";
// The script of the page. Text from tests never becomes markup: every element is made by el(), and links are built from
// a section's name, a test's key, or the checked parts of a rank file's path.
(() => {
  const GLYPHS = { F: "✕", E: "!", f: "↻", S: "–", K: "≈", P: "✓" };
  const OUTCOMES = {
    passed: "✓", failed: "F", errored: "E", crashed: "C", timed_out: "T", aborted: "A", missing: "?",
    skipped: "S", xfailed: "x", xpassed: "X",
  };
  const OWN = new Set(["failed", "errored", "crashed", "timed_out", "missing"]);  // outcomes of ranks that failed on their own
  const DIED = new Set(["crashed", "timed_out", "missing"]);  // the end of such a rank's output is most useful
  const WHOLE_LINES = 14;
  const GROUPS_AT_ONCE = 25;
  const ROWS_AROUND = 8;
  const MOST_SQUARES = 256;
  const FILES = { xml: "XML", log: "log", "stacks.txt": "stacks" };

  const byId = (id) => document.getElementById(id);
  const none = () => ({ q: "", v: new Set(), cell: "", suite: "", axes: new Map(), reason: "", group: "", sort: "bad", t: "" });

  let run = null;
  let rows = [];
  let shown = [];
  let state = none();
  let active = 0;
  let cameFrom = null;

  // An axis or a suite may have any name, including that of a property that every object inherits.
  const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

  // Elements

  // Line separators and bidirectional marks whose effect an element does not contain.
  const UNRULY = /[\u2028-\u202e\u2066-\u2069]/g;
  const escaped = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  const visible = (text) => text.replace(UNRULY, escaped);

  function el(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "class") element.className = value;
      else element.setAttribute(name, value === true ? "" : value);
    }
    const present = children.flat().filter((child) => child !== null && child !== undefined && child !== "");
    element.append(...present.map((child) => (typeof child === "string" ? visible(child) : child)));
    return element;
  }

  const fill = (element, ...children) => element.replaceChildren(...children.flat().filter(Boolean));
  const code = (text) => el("code", {}, text);
  const button = (text, onclick, properties = {}) => el("button", { type: "button", onclick, ...properties }, text);
  const plural = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

  function time(ms) {
    if (ms < 1) return "<1 ms";
    if (ms < 1000) return `${Math.round(ms)} ms`;
    if (ms < 60000) return `${(ms / 1000).toPrecision(3)} s`;
    const seconds = Math.round(ms / 1000);
    const [minutes, two] = [Math.floor(seconds / 60), (n) => String(n % 60).padStart(2, "0")];
    return minutes < 60 ? `${minutes} min ${two(seconds)} s` : `${Math.floor(minutes / 60)} h ${two(minutes)} min`;
  }

  // Data

  async function unpack(id) {
    const packed = byId(id).textContent;
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  }

  async function load() {
    const lines = (await unpack("index")).split("\n");
    lines.pop();
    run = JSON.parse(lines.pop());
    const names = [];
    const counted = new Map();
    for (const line of lines) readBlock(JSON.parse(line), names, counted);
  }

  function readBlock(block, names, counted) {
    names.push(...block.s);
    let n = 0;
    for (let r = 0; r < block.n.length; r += 2) {
      for (let number = block.n[r]; number < block.n[r] + block.n[r + 1]; number++, n++) {
        const x = block.x[n] || {};
        if (x.g !== undefined) x.g = run.order[x.g];
        const row = { at: rows.length, job: run.jobs[block.j], number, name: names[number], v: block.v[n], ms: block.t[n], x };
        const identity = block.j * 1e7 + number;
        row.occurrence = (counted.get(identity) || 0) + 1;
        counted.set(identity, row.occurrence);
        rows.push(row);
      }
    }
  }

  const chunks = new Map();
  async function detailOf(row) {
    if (!row.x.d) return {};
    const [chunk, index] = row.x.d;
    if (!chunks.has(chunk)) chunks.set(chunk, unpack(`chunk-${chunk}`).then(JSON.parse));
    return (await chunks.get(chunk))[index];
  }

  const keyOf = (row) => `${row.job.cell}/${row.job.suite}/${row.name}${row.occurrence > 1 ? `~${row.occurrence}` : ""}`;
  const rowOf = (key) => rows.find((row) => key.endsWith(row.occurrence > 1 ? `~${row.occurrence}` : row.name) && keyOf(row) === key);
  const messageOf = (row) => row.x.m ?? "";
  const reasonOf = (row) => (row.x.s === undefined ? "" : run.reasons[row.x.s][0]);
  const isBad = (row) => row.v === "F" || row.v === "E";
  const statusOf = (row) => (row.x.f ? "f" : row.v);
  const orderOf = (letter) => run.statuses.findIndex(([status]) => status === letter);  // the worst status first
  const wordOf = (letter) => run.statuses[orderOf(letter)][1];

  function runsOf(strip) {
    const runs = [];
    for (const part of strip.split(" ").filter(Boolean)) {
      const [ranks, outcome] = part.split(":");
      for (const range of ranks.split(",")) {
        const [from, to] = range.split("-").map(Number);
        runs.push({ from, to: to ?? from, outcome });
      }
    }
    runs.sort((left, right) => left.from - right.from);
    return runs.reduce((joined, run) => {
      const last = joined[joined.length - 1];
      if (last && last.outcome === run.outcome && last.to + 1 === run.from) last.to = run.to;
      else joined.push({ ...run });
      return joined;
    }, []);
  }

  const stripOf = (row) => runsOf(row.x.r ?? row.job.ranks);
  const has = (ranks, rank) => runsOf(`${ranks}:x`).some((each) => each.from <= rank && rank <= each.to);

  // State and address

  function address(changes = {}) {
    const next = { ...state, ...changes };
    const parameters = new URLSearchParams();
    if (next.q) parameters.set("q", next.q);
    if (next.v.size) parameters.set("v", [...next.v].join(""));
    for (const name of ["cell", "suite", "reason", "group"]) if (next[name] !== "") parameters.set(name, next[name]);
    for (const [axis, value] of next.axes) parameters.set(`axis.${axis}`, value);
    if (next.sort !== "bad") parameters.set("sort", next.sort);
    if (next.t) parameters.set("t", next.t);
    return `#${parameters}`;
  }

  function readAddress() {
    const text = location.hash.slice(1);
    if (text && !text.includes("=")) return false;
    const parameters = new URLSearchParams(text);
    const next = none();
    for (const name of ["q", "cell", "suite", "reason", "group", "t"]) next[name] = parameters.get(name) || "";
    next.v = new Set([...(parameters.get("v") || "")].filter((letter) => letter in GLYPHS));
    next.sort = parameters.get("sort") || "bad";
    for (const [name, value] of parameters) if (name.startsWith("axis.")) next.axes.set(name.slice(5), value);
    state = next;
    return true;
  }

  function filter(changes, { jump = false } = {}) {
    state = { ...state, ...changes };
    history.replaceState(null, "", address());
    applyFilters();
    if (jump) byId("tests").scrollIntoView();
  }

  const fits = () => matchMedia("(min-width: 1200px)").matches;

  function only(changes) {
    const t = fits() ? state.t : "";  // on a narrow screen, the open test would hide the list
    const closes = t !== state.t;
    filter({ ...none(), sort: state.sort, t, ...changes }, { jump: true });
    if (closes) showDetail();
  }

  function matches() {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const axes = [...state.axes];
    const jobs = new Set(run.jobs.filter((job) =>
      (!state.cell || job.cell === state.cell) && (!state.suite || job.base === state.suite) &&
      axes.every(([axis, value]) => String(own(job.axes, axis)) === value)));
    return (row) =>
      jobs.has(row.job) &&
      (!state.v.size || state.v.has(row.v) || (row.x.f && state.v.has("f"))) &&
      (state.group === "" || row.x.g === Number(state.group)) &&
      (!state.reason || reasonOf(row) === state.reason) &&
      (!words.length || hasAll(row, words));
  }

  function hasAll(row, words) {
    row.text ??= `${row.name}\n${row.job.cell}\n${row.job.suite}\n${messageOf(row)}\n${reasonOf(row)}`.toLowerCase();
    return words.every((word) => row.text.includes(word));
  }

  const SORTS = {
    bad: (left, right) => orderOf(statusOf(left)) - orderOf(statusOf(right)) || left.at - right.at,
    slow: (left, right) => right.ms - left.ms || left.at - right.at,
    name: (left, right) => (left.name < right.name ? -1 : left.name > right.name ? 1 : left.at - right.at),
    run: (left, right) => left.at - right.at,
  };

  function applyFilters() {
    shown = rows.filter(matches()).sort(SORTS[state.sort] || SORTS.bad);
    active = 0;
    const listed = `${shown.length.toLocaleString("en")} of ${plural(rows.length, "test")}`;
    byId("shown").textContent = run.out ? `${listed}; ${run.out.toLocaleString("en")} more are not listed` : listed;
    showControls();
    byId("list").scrollTop = 0;
    showRows();
  }

  // Parts of rows

  const badge = (letter, word) => el("span", { class: `badge v-${letter}`, title: wordOf(letter) },
    el("i", { "aria-hidden": "true" }, GLYPHS[letter]), word ?? wordOf(letter));

  function glyph(letter) {
    return el("span", { class: `glyph v-${letter}`, title: wordOf(letter), role: "img", "aria-label": wordOf(letter) }, GLYPHS[letter]);
  }

  function named(name) {
    const cut = name.lastIndexOf("::");
    const [file, own] = cut < 0 ? ["", name] : [name.slice(0, cut + 2), name.slice(cut + 2)];
    return el("bdi", { class: "name", title: name }, el("span", { class: "file" }, file), el("b", {}, own));
  }

  function strip(row, most = 10) {
    let runs = apart(stripOf(row), row.x.l);
    const words = runs.map((each) => `${span(each)} ${each.outcome}${each.leads ? " (primary failure)" : ""}`).join(", ");
    if (runs.length > most) runs = [...runs.filter((each) => each.leads), ...byOutcome(runs.filter((each) => !each.leads))];
    const number = (each) => (count(each) > 1 ? `×${count(each)}` : "");
    const which = (each) => (OWN.has(each.outcome) && each.count === undefined ? span(each) : number(each));
    const parts = runs.map((each) => chip(each.outcome, each.leads, which(each)));
    return el("span", { class: "strip", title: words && `ranks: ${words}`, role: "img", "aria-label": words && `ranks: ${words}` }, parts);
  }

  const look = (outcome, leads) => `o-${outcome}${leads ? " leads" : ""}`;
  const chip = (outcome, leads, text) => el("i", { class: look(outcome, leads), "aria-hidden": "true" },
    OUTCOMES[outcome] || "?", text ? el("small", {}, text) : null);

  // Splits the rank with the primary failure from its neighbors.
  function apart(runs, lead) {
    return runs.flatMap((each) => (lead === undefined || lead < each.from || lead > each.to ? [each] : [
      { ...each, to: lead - 1 }, { ...each, from: lead, to: lead, leads: true }, { ...each, from: lead + 1 },
    ].filter((part) => part.from <= part.to)));
  }

  const count = (each) => each.count ?? each.to - each.from + 1;
  const span = (each) => (each.from === each.to ? `${each.from}` : `${each.from}-${each.to}`);

  function byOutcome(runs) {
    const totals = new Map();
    for (const each of runs) totals.set(each.outcome, (totals.get(each.outcome) || 0) + count(each));
    return [...totals].map(([outcome, number]) => ({ outcome, count: number }));
  }

  function link(row, ...children) {
    return el("a", { href: address({ t: keyOf(row) }), onclick: (event) => follow(event, row) }, ...children);
  }

  function follow(event, row) {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    open(row);
  }

  function blamed(number) {
    if (number === undefined || number === null) return null;
    const { p, f, n, a } = run.blames[number];
    return el("p", { class: "blame" }, el("b", {}, "Fails exactly where "), code(p),
      `: it fails in all ${f} of these cells, and passes in all ${n} others.`,
      a.length ? [" The same cells have ", ...a.flatMap((text, at) => [at ? ", " : "", code(text)]), "."] : null);
  }

  // Head, matrix, failures

  function showCounts() {
    const items = [...byId("counts").children].map((item) => {
      const letter = item.className[2];
      const chip = button([el("i", { "aria-hidden": "true" }, GLYPHS[letter]), ...item.childNodes],
        () => only({ v: new Set([letter]) }), { title: "Show these tests" });
      return el("li", { class: item.className }, chip);
    });
    fill(byId("counts"), items);
  }

  function showMatrix() {
    const places = new Map();
    for (const job of run.jobs) {
      if (!places.has(job.cell)) places.set(job.cell, new Map());
      const ofCell = places.get(job.cell);
      ofCell.set(job.base, [...(ofCell.get(job.base) || []), job]);
    }
    const suites = [...new Set(run.jobs.map((job) => job.base))];
    const head = suites.map((suite) => el("th", { scope: "col" }, button(suite, () => only({ suite }), { class: "quiet" })));
    const body = [...places].map(([cell, ofCell]) => el("tr", {},
      el("th", { scope: "row" }, button(cell, () => only({ cell }), { class: "quiet" })),
      suites.map((suite) => el("td", {}, ofCell.has(suite) ? tile(cell, suite, ofCell.get(suite)) : null))));
    fill(byId("matrix-body"), el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "cell"), head)), el("tbody", {}, body)));
    const kinds = Object.entries(TILES).filter(([kind]) => byId("matrix-body").querySelector(`.t-${kind}`));
    byId("matrix-body").before(el("p", { class: "legend" },
      kinds.map(([kind, [mark, words]]) => el("span", { class: "key" }, el("i", { class: `t-${kind}`, "aria-hidden": "true" }, mark), ` ${words}`))));
  }

  const TILES = {
    bad: ["✕", "failed, of all tests; darker above 5 % and above 50 %"], flaky: ["↻", "flaky, of all tests"],
    good: ["✓", "passed, and the time of the job"], idle: ["–", "skipped, and the time of the job"],
  };

  function tile(cell, suite, jobs) {
    const [tests, passed, failed, errors, skipped, , flaky] = jobs.map((job) => job.n).reduce((left, right) => left.map((n, at) => n + right[at]));
    const bad = failed + errors;
    const seconds = jobs.reduce((sum, job) => sum + job.time, 0);
    const [kind, number] = bad ? ["bad", bad] : flaky ? ["flaky", flaky] : passed ? ["good", passed] : ["idle", skipped];
    const shade = bad * 20 > tests ? ` l${bad * 2 > tests ? 3 : 2}` : "";
    const detail = bad || flaky ? `of ${tests.toLocaleString("en")}` : time(seconds * 1000);
    const words = `${cell}, ${suite}: ${tests} tests, ${passed} passed, ${failed} failed, ${errors} errors, ${skipped} skipped, ${time(seconds * 1000)}`;
    return button([el("span", { "aria-hidden": "true" }, TILES[kind][0]), ` ${number.toLocaleString("en")} `, el("small", {}, detail)],
      () => only({ cell, suite }), { class: `tile t-${kind}${shade}`, title: words, "aria-label": `${number.toLocaleString("en")} ${detail}: ${words}` });
  }

  const isOfJob = (row) => !row.x.r && row.name.startsWith("allranks::");

  function showFailures() {
    const members = run.groups.map(() => []);
    for (const row of rows.filter(isBad)) members[row.x.g].push(row);
    const body = byId("failures-body");
    (members.length ? body : byId("tests-body")).before(legendOfRanks());
    if (!members.length) return undefined;
    const failed = run.groups.reduce((sum, group) => sum + group.n, 0);
    fill(byId("failures-title"), "Failures ", el("small", {}, members.length < failed
      ? `${plural(failed, "test")}, ${plural(members.length, "different message")}` : plural(failed, "test")));
    const more = button("", () => showMore(), { class: "more" });
    const hidden = [...members.keys()];
    const showMore = () => {
      more.before(...hidden.splice(0, GROUPS_AT_ONCE).map((at) => groupCard(run.groups[at], at, members[at])));
      more.textContent = `Show ${Math.min(hidden.length, GROUPS_AT_ONCE)} of ${hidden.length} more`;
      more.hidden = !hidden.length;
    };
    fill(body, more);
    showMore();
    return members[0].length ? leadWith(body.querySelector(".group"), members[0][0]) : undefined;
  }

  function legendOfRanks() {
    const bad = rows.filter(isBad);
    const strips = new Set((bad.length ? bad : rows).map((row) => row.x.r ?? row.job.ranks));
    const found = new Set([...strips].flatMap((ranks) => runsOf(ranks).map((each) => each.outcome)));
    const leads = bad.find((row) => row.x.l !== undefined);
    const keys = Object.keys(OUTCOMES).filter((outcome) => found.has(outcome))
      .map((outcome) => el("span", { class: "key" }, chip(outcome), ` ${outcome.replaceAll("_", " ")}`));
    return el("p", { class: "legend" }, "Ranks of a test: ",
      leads ? el("span", { class: "key" }, chip("failed", true, "1"), chip("timed_out", true, "1"), " rank 1 has the primary failure") : null, keys,
      el("span", { class: "key" }, el("b", {}, "×3"), " three ranks"));
  }

  // The first group is open: where it failed, which rank waited for which, and the end of the output of a rank that died.
  async function leadWith(card, row) {
    const detail = await detailOf(row);
    const [lead] = detail.r || [];
    const text = lead ? lead.e || firstLines(lead.t) : firstLines(detail.t);
    const end = lead && DIED.has(lead.o) ? [lead.so, lead.se].filter(Boolean).join("\n").split("\n").slice(-8).join("\n") : "";
    card.append(...waitsOf(detail), ...(text && !messageOf(row).includes(text.trim()) ? [el("pre", {}, text)] : []),
      ...(end ? [el("p", { class: "extent" }, `The end of the output of ${whoseRanks(lead.n)}:`), el("pre", { class: "end" }, end)] : []));
    settle(card);
  }

  const firstLines = (text) => (text || "").split("\n").slice(0, WHOLE_LINES).join("\n");

  function groupCard(group, number, members) {
    const tests = new Set(members.map((row) => `${row.job.base}/${row.name}`));
    const listed = members.length < group.n ? `${members.length.toLocaleString("en")} of ${group.n.toLocaleString("en")}` : `all ${group.n.toLocaleString("en")}`;
    const all = members.length > 3 ? button(`Show ${listed}`, () => only({ group: String(number) }), { class: "quiet" }) : null;
    const title = [badge(group.k, group.w.replaceAll("_", " ")), el("bdi", {}, group.m)];
    return el("article", { class: "group" },
      el("h3", {}, members.length ? link(members[0], ...title) : el("span", { class: "a" }, ...title)),
      group.r || all ? el("p", { class: "extent" }, group.r, " ", all) : null,
      blamed(group.b ?? (tests.size === 1 ? blameOf(members[0]) : undefined)),
      el("ul", { class: "plain" }, members.slice(0, 3).map((row) => el("li", {}, link(row, named(row.name), place(row), strip(row, 6))))));
  }

  const place = (row) => el("bdi", { class: "place" }, `${row.job.cell} / ${row.job.suite}`);
  const blameOf = (row) => (isBad(row) ? own(run.tests, row.job.base)?.[row.number] : undefined);

  // List of tests

  function buildTests() {
    const search = el("input", {
      id: "search", type: "search", placeholder: "Search names and messages", "aria-label": "Search names and messages",
      autocomplete: "off", spellcheck: "false", oninput: (event) => filter({ q: event.target.value }),
    });
    const list = el("div", {
      id: "list", role: "grid", tabindex: "0", "aria-label": "Tests", onscroll: showRows, onkeydown: moveInList,
    }, el("div", { id: "space", role: "rowgroup" }));
    fill(byId("tests-body"), el("div", { class: "controls", role: "search" }, search,
      el("div", { id: "verdicts", role: "group", "aria-label": "Verdicts" }), el("div", { id: "selects" })), el("p", { id: "chips" }), list);
    addEventListener("resize", showRows);
  }

  function showControls() {
    if (byId("search").value !== state.q) byId("search").value = state.q;
    fill(byId("verdicts"), run.statuses.map(([letter]) => letter).filter(occurs).map(verdictToggle));
    fill(byId("selects"), [
      choice("cell", "cell", distinct((job) => job.cell), state.cell, (cell) => filter({ cell })),
      choice("suite", "suite", distinct((job) => job.base), state.suite, (suite) => filter({ suite })),
      ...axisChoices(),
      choice("reason", "skip reason", run.reasons.map(([text]) => text), state.reason, (reason) => filter({ reason }), 1),
      el("select", { id: "sort", "aria-label": "Order", onchange: (event) => filter({ sort: event.target.value }) },
        [["bad", "failures first"], ["slow", "slowest first"], ["name", "by name"], ["run", "in run order"]].map(([value, text]) =>
          el("option", { value, selected: value === state.sort }, text))),
    ]);
    showChips();
  }

  let occurring = null;
  function occurs(letter) {
    occurring ??= new Set(rows.flatMap((row) => (row.x.f ? [row.v, "f"] : [row.v])));
    return occurring.has(letter);
  }

  const distinct = (of) => [...new Set(run.jobs.map(of))];

  function axisChoices() {
    const axes = [...new Set(run.jobs.flatMap((job) => Object.keys(job.axes)))];
    return axes.map((axis) => choice(`axis-${axis}`, axis, distinct((job) => own(job.axes, axis)).filter((value) => value !== undefined).map(String),
      state.axes.get(axis) ?? "", (value) => {
        const chosen = new Map(state.axes);
        if (value === "") chosen.delete(axis);
        else chosen.set(axis, value);
        filter({ axes: chosen });
      }));
  }

  function choice(id, what, values, chosen, choose, fewest = 2) {
    if (values.length < fewest && chosen === "") return null;
    return el("select", { id: `filter-${id}`, "aria-label": what, class: chosen === "" ? "" : "on", onchange: (event) => choose(event.target.value) },
      el("option", { value: "" }, `any ${what}`), values.map((value) => el("option", { value, selected: value === chosen }, value)));
  }

  function verdictToggle(letter) {
    const on = state.v.has(letter);
    return button([el("i", { "aria-hidden": "true" }, GLYPHS[letter]), wordOf(letter)], () => {
      const v = new Set(state.v);
      if (!v.delete(letter)) v.add(letter);
      filter({ v });
    }, { class: `toggle v-${letter}`, "aria-pressed": String(on), "data-verdict": letter });
  }

  function showChips() {
    const group = state.group === "" ? null : run.groups[Number(state.group)];
    const any = state.q || state.v.size || state.cell || state.suite || state.reason || group || state.axes.size;
    fill(byId("chips"), group && button([`same failure: ${group.m.slice(0, 80)}`, el("b", { "aria-hidden": "true" }, " ×")],
      () => filter({ group: "" }), { class: "chip" }),
    any && button("Clear all filters", () => filter({ ...none(), t: state.t }), { class: "quiet", id: "clear" }));
  }

  const rowHeight = () => parseFloat(getComputedStyle(byId("list")).getPropertyValue("--row")) || 36;

  function showRows() {
    const list = byId("list"), space = byId("space"), height = rowHeight();
    space.style.height = `${shown.length * height}px`;
    const first = Math.max(0, Math.floor(list.scrollTop / height) - ROWS_AROUND);
    const last = Math.min(shown.length, first + Math.ceil((list.clientHeight || 600) / height) + 2 * ROWS_AROUND);
    const made = [];
    for (let at = first; at < last; at++) made.push(listRow(at, height));
    list.setAttribute("aria-rowcount", String(shown.length));
    fill(space, made.length ? made : el("p", { class: "none", role: "row" }, el("span", { role: "gridcell" }, "No tests match.")));
    const current = byId(`row-${active}`);
    if (current) list.setAttribute("aria-activedescendant", current.id);
    else list.removeAttribute("aria-activedescendant");
  }

  function listRow(at, height) {
    const row = shown[at];
    const says = messageOf(row) || reasonOf(row);
    const element = el("div", {
      id: `row-${at}`, role: "row", class: `row${isBad(row) ? " bad" : ""}`, "aria-selected": String(at === active), "aria-rowindex": String(at + 1),
    }, [glyph(statusOf(row)), link(row, named(row.name), says && el("bdi", { class: "says" }, says)), place(row), strip(row, 6),
      el("span", { class: "time" }, isOfJob(row) ? "" : time(row.ms))].map((part) => el("span", { class: "cell", role: "gridcell" }, part)));
    element.querySelector("a").tabIndex = -1;
    element.style.transform = `translateY(${at * height}px)`;
    return element;
  }

  const STEPS = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

  function moveInList(event) {
    if (event.key === "Enter" && shown[active]) open(shown[active]);
    else if (event.key in STEPS && shown.length && !event.ctrlKey && !event.metaKey && !event.altKey) activate(active + STEPS[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function activate(at) {
    active = Math.max(0, Math.min(shown.length - 1, at));
    const list = byId("list"), height = rowHeight();
    if (active * height < list.scrollTop) list.scrollTop = active * height;
    else if ((active + 1) * height > list.scrollTop + list.clientHeight) list.scrollTop = (active + 1) * height - list.clientHeight;
    showRows();
  }

  // Slowest and skips

  function showSlowest() {
    const longest = run.slowest.length ? run.slowest[0][0] : 0;
    const items = run.slowest.map(([ms, job, name, letter]) => {
      const row = rows.find((each) => each.name === name && each.job === run.jobs[job]);
      const label = [named(name), el("bdi", { class: "place" }, `${run.jobs[job].cell} / ${run.jobs[job].suite}`)];
      return el("li", {}, bar(ms / longest), el("span", { class: "time" }, time(ms)), glyph(row ? statusOf(row) : letter),
        row ? link(row, ...label) : el("span", { class: "a" }, ...label));
    });
    const list = el("ol", { class: "plain bars" }, items.slice(0, 10));
    fill(byId("slowest-body"), items.length ? list : el("p", { class: "none" }, "No test took any time."),
      items.length > 10 && button(`Show ${items.length - 10} more`, (event) => { list.append(...items.slice(10)); event.target.remove(); }, { class: "more" }));
  }

  function bar(share) {
    const filled = el("i");
    filled.style.width = `${Math.max(1, Math.round(100 * share)) || 1}%`;
    return el("span", { class: "bar", "aria-hidden": "true" }, filled);
  }

  function showSkips() {
    const reasons = run.reasons.filter(([, skipped, passed]) => skipped + passed)
      .sort((left, right) => right[1] + right[2] - left[1] - left[2]);
    if (!reasons.length) return;
    const most = reasons[0][1] + reasons[0][2];
    const items = reasons.map(([text, skipped, passed]) => el("li", {}, bar((skipped + passed) / most),
      el("span", { class: "time" }, (skipped + passed).toLocaleString("en")),
      glyph(passed ? "K" : "S"),
      button([el("bdi", {}, text), el("span", { class: "place" }, passed ? (skipped ? `${skipped} skipped, ${passed} count as passed` : "count as passed") : "skipped")],
        () => only({ reason: text }), { class: "quiet" })));
    const list = el("ol", { class: "plain bars" }, items.slice(0, 20));
    fill(byId("skips-body"), list, items.length > 20 && button(`Show ${items.length - 20} more`,
      (event) => { list.append(...items.slice(20)); event.target.remove(); }, { class: "more" }));
  }

  // One test

  function open(row) {
    if (!state.t) cameFrom = document.activeElement;
    state = { ...state, t: keyOf(row) };
    history.pushState(null, "", address());
    return showDetail();
  }

  function close() {
    state = { ...state, t: "" };
    history.replaceState(null, "", address());
    showDetail();
    (cameFrom?.isConnected ? cameFrom : byId("list")).focus({ preventScroll: true });
  }

  async function showDetail() {
    const row = state.t ? rowOf(state.t) : null;
    const aside = byId("detail");
    document.documentElement.classList.toggle("has-detail", Boolean(state.t));
    aside.hidden = !state.t;
    if (!state.t) return fill(aside);
    const key = state.t;
    const detail = row ? await detailOf(row) : {};
    if (state.t !== key) return undefined;
    fill(aside, row ? testDetail(row, detail) : absent(key));
    settle(aside);
    aside.scrollTop = 0;
    byId("detail-title").focus({ preventScroll: true });
    return undefined;
  }

  const closeButton = () => button("×", close, { class: "close", "aria-label": "Close", title: "Close (Esc)" });

  function absent(key) {
    return [closeButton(), el("h2", { id: "detail-title", tabindex: "-1" }, "This test is not listed here"),
      el("p", {}, el("bdi", {}, key)), el("p", {}, "It is not in this run, or this run has more tests than the page lists; junit.xml has all of them.")];
  }

  function testDetail(row, detail) {
    return [
      closeButton(),
      el("p", { class: "kind" }, badge(row.v, row.x.w ? row.x.w.replaceAll("_", " ") : undefined), row.x.f ? badge("f") : null,
        isOfJob(row) ? null : el("span", { class: "time" }, time(row.ms)), row.x.c === undefined ? null : el("span", { class: "time" }, `exit code ${row.x.c}`)),
      el("h2", { id: "detail-title", tabindex: "-1" }, named(row.name)),
      el("p", { class: "place" }, button(row.job.cell, () => only({ cell: row.job.cell }), { class: "quiet" }), " / ",
        button(row.job.suite, () => only({ suite: row.job.base }), { class: "quiet" }), ...environment(row.job)),
      says(row, detail),
      blamed(blameOf(row)),
      ...waitsOf(detail),
      ...rankSquares(row, detail),
      ...timeLine(detail.w, row.x.l),
      ...(detail.r || []).slice(0, 1).map((group) => rankSection(row, group, true, textOf(row, detail))),
      ...outputDiff(row, detail.x),
      ...(detail.r || []).slice(1).map((group) => rankSection(row, group, false, "")),
      shortSections(detail.o),
      detail.t ? el("pre", {}, detail.t) : null,
      isBad(row) && !row.x.d ? el("p", { class: "hint" }, "The page has no space for the texts of this test; junit.xml and the files of the ranks have them.") : null,
      ...attempts(detail.a),
      ...reproduce(row),
      ...inOtherCells(row),
      ...jobFiles(row),
    ];
  }

  function environment(job) {
    const facts = [job.engine && `engine ${job.engine}`, job.image && `image ${job.image}`, job.attempt > 1 && `attempt ${job.attempt}`].filter(Boolean);
    return facts.length ? [el("br"), el("small", {}, facts.join(" · "))] : [];
  }

  const textOf = (row, detail) => detail.m || messageOf(row) || reasonOf(row);

  function says(row, detail) {
    const text = textOf(row, detail);
    return text ? el("p", { class: `says v-${row.v}` }, el("bdi", {}, text)) : null;
  }

  function rankSquares(row, detail) {
    const runs = apart(stripOf(row), row.x.l);
    const ranks = runs.length ? runs[runs.length - 1].to + 1 : 0;
    if (!ranks) return [];
    const squares = ranks > MOST_SQUARES ? runs.map((each) => square(row, detail, each)) : runs.flatMap((each) =>
      Array.from({ length: count(each) }, (_, n) => square(row, detail, { ...each, from: each.from + n, to: each.from + n })));
    return [el("h3", {}, plural(runs.reduce((sum, each) => sum + count(each), 0), "rank"), " ", legend(runs)), el("div", { class: "squares" }, squares)];
  }

  function legend(runs) {
    return el("small", {}, byOutcome(runs).map((each) => el("span", { class: "key" },
      chip(each.outcome), ` ${each.count} ${each.outcome.replaceAll("_", " ")}`)));
  }

  function square(row, detail, each) {
    const ms = each.from === each.to && detail.d ? detail.d[stripOf(row).filter((one) => one.from <= each.from)
      .reduce((sum, one) => sum + Math.min(one.to, each.from) - one.from + 1, 0) - 1] : undefined;
    const leads = each.leads ? ", primary failure" : "";
    const words = `rank ${span(each)}: ${each.outcome.replaceAll("_", " ")}${leads}${ms === undefined ? "" : `, ${time(ms)}`}`;
    return button([el("b", {}, OUTCOMES[each.outcome] || "?"), el("small", {}, span(each)), el("span", { class: "unseen" }, ` ${words}`)],
      () => goToRank(each.from), { class: look(each.outcome, leads), title: words });
  }

  function goToRank(rank) {
    const section = [...document.querySelectorAll("#detail [data-ranks]")].find((each) => has(each.dataset.ranks, rank));
    if (!section) return;
    section.open = true;
    section.scrollIntoView({ block: "start" });
    section.querySelector("summary")?.focus({ preventScroll: true });
  }

  const whoseRanks = (ranks) => (/[,-]/.test(ranks) ? `ranks ${ranks.replaceAll(",", ", ")}` : `rank ${ranks}`);

  // Makes scrollable elements reachable by keyboard, and scrolls outputs to their end.
  function settle(element) {
    for (const each of element.querySelectorAll("pre, .says")) if (each.scrollHeight > each.clientHeight) each.tabIndex = 0;
    for (const each of element.querySelectorAll("pre.end")) each.scrollTop = each.scrollHeight;
  }

  // Timeline

  const waitsOf = (detail) => (detail.w?.s || []).map((text) => el("p", { class: "waits" }, el("bdi", {}, text)));

  const PHASES = { setup: "set-up", call: "call", teardown: "tear-down", rest: "not reported", waits: "waiting for other ranks" };

  function timeLine(data, lead) {
    if (!data?.r) return [];
    const words = `${data.r.length} ranks over ${time(data.e)}; the table below has all times`;
    const lanes = data.r.map((lane) => el("div", { class: "lane" }, el("span", { class: "who" }, `rank ${lane[0]} `,
      chip(lane[1], lane[0] === lead)), el("span", { class: "track" }, marks(lane, data))));
    const keys = ["setup", "call", "teardown", "rest", "waits"].map((kind) => el("span", { class: "key" }, el("i", { class: `ph ph-${kind}` }), ` ${PHASES[kind]}`));
    return [el("h3", {}, "Timeline ", el("small", {}, `${time(data.e)} from its start${data.n ? `; ${plural(data.n, "more rank")} not shown` : ""}`)),
      el("div", { class: "lanes", role: "img", "aria-label": words }, lanes),
      el("p", { class: "keys" }, keys, data.c ? el("span", { class: "key" }, el("i", { class: "tick" }), " a collective") : null),
      el("details", { class: "output" }, el("summary", {}, "As a table"), timeTable(data))];
  }

  function marks([rank, outcome, end, phases, waits], data) {
    const place = (element, from, to) => {
      element.style.left = `${Math.min(100, (100 * from) / Math.max(data.e, 1))}%`;
      if (to !== undefined) element.style.width = `${Math.max(0, Math.min(100, (100 * (to - from)) / Math.max(data.e, 1)))}%`;
      return element;
    };
    const span = (kind, words, from, to) => place(el("i", { class: `ph ph-${own(PHASES, kind) ? kind : "call"}`, title: `${words}: ${time(from)} to ${time(to)}` }), from, to);
    let from = 0;
    const spans = phases.map(([when, result, ms]) => span(when, `${own(PHASES, when) || when} ${result}`, from, from += ms));
    if (!phases.length && outcome === "passed") spans.push(span("call", "all phases passed", 0, end));
    else if (from < end) spans.push(span("rest", `not reported until it ${OWN.has(outcome) ? "ended" : "was stopped"}`, from, end));
    const calls = (data.c || []).flatMap(([name, entered]) => entered.filter(([one]) => one === rank)
      .map(([, ms]) => place(el("i", { class: "tick", title: `${name}: ${time(ms)}` }), ms)));
    return [...spans, ...waits.map(([start, until, name]) => span("waits", `in ${name}, waiting for other ranks`, start, until)), ...calls];
  }

  function timeTable(data) {
    const calls = data.c || [];
    const head = ["rank", "phases", "end", ...calls.map(([name]) => name)].map((text) => el("th", { scope: "col" }, el("bdi", {}, text)));
    const body = data.r.map(([rank, , end, phases]) => el("tr", {}, el("th", { scope: "row" }, String(rank)),
      el("td", {}, phases.map(([when, , ms]) => `${own(PHASES, when) || when} ${time(ms)}`).join(", ") || "–"), el("td", {}, time(end)),
      calls.map(([, entered]) => el("td", {}, entered.filter(([one]) => one === rank).map(([, ms]) => time(ms))[0] || "–"))));
    return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Times of the ranks" },
      el("table", { class: "times" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
  }

  function outputDiff(row, data) {
    if (!data) return [];
    const other = `rank ${data.o} (${data.w.replaceAll("_", " ")})`;
    if (!data.t) return [el("p", { class: "hint" }, `Rank ${row.x.l} printed the same as ${other}, apart from addresses, rank numbers and times of day.`)];
    const kinds = { "-": "del", "+": "ins", "@": "small" };
    return [el("h3", {}, "Differences in output ", el("small", {}, `− ${other}, + rank ${row.x.l}`)),
      el("pre", { class: "diff" }, data.t.map((line) => el(kinds[line[0]] || "span", {}, line)))];
  }

  // The report of a rank, without texts that the page already shows.
  function rankSection(row, group, isFirst, shownText) {
    const leads = row.x.l !== undefined && has(group.n, row.x.l);
    const primary = /[,-]/.test(group.n) ? `rank ${row.x.l} has the primary failure` : "primary failure";
    const notes = [leads && primary, group.ph && group.ph !== "call" && `in ${group.ph}`,
      group.by !== undefined && `because of rank ${group.by}`].filter(Boolean);
    const isNew = (text) => Boolean(text) && !shownText.includes(text.trim());
    return el("details", { class: "ranks", "data-ranks": group.n, open: isFirst || undefined },
      el("summary", {}, chip(group.o, leads), el("b", {}, whoseRanks(group.n)),
        ` ${group.o.replaceAll("_", " ")}`, notes.length ? el("small", {}, notes.join(", ")) : null,
        !isFirst && group.m ? el("bdi", { class: "first" }, group.m) : null),
      isNew(group.m) && group.m.trim() !== (group.t || "").trim() ? el("p", { class: "said" }, el("bdi", {}, group.m)) : null,
      DIED.has(group.o) ? printed(row, group) : null, isNew(group.t) ? texts(group) : null, DIED.has(group.o) ? null : printed(row, group),
      group.c ? el("p", { class: "hint" }, "This was cut. The complete text: ", files(row.job, group.n, "the rank's file in the run's folder")) : null);
  }

  // The frames of the user's own code, then all frames.
  function texts(group) {
    if (!group.e || group.t.split("\n").length <= WHOLE_LINES) return el("pre", {}, group.t);
    return [el("pre", {}, group.e), el("details", { class: "output" }, el("summary", {}, "All frames"), el("pre", {}, group.t))];
  }

  function printed(row, group) {
    const died = DIED.has(group.o);
    const outputs = [["stdout", group.so], ["stderr", group.se]].filter(([, text]) => text).map(([what, text]) => el("details",
      { class: "output", open: true }, el("summary", {}, died ? `the end of its ${what}` : what), el("pre", { class: died && "end" }, text)));
    return outputs.length || !died || group.c ? outputs : el("p", { class: "hint" }, "It printed nothing in this test. ", files(row.job, group.n, ""));
  }

  function shortSections(others) {
    if (!others) return null;
    return el("details", { class: "ranks", "data-ranks": others.map((each) => each.n).join(",") },
      el("summary", {}, el("b", {}, whoseRanks(others.map((each) => each.n).join(","))), el("small", {}, "in short")),
      el("ul", { class: "plain short" }, others.map((each) => el("li", {}, chip(each.o),
        ` ${whoseRanks(each.n)} ${each.o.replaceAll("_", " ")}${each.m ? ": " : ""}`, el("bdi", {}, each.m || "")))));
  }

  function attempts(earlier) {
    if (!earlier) return [];
    return [el("h3", {}, "Earlier attempts"), ...earlier.map((attempt) => el("details", { class: "ranks" },
      el("summary", {}, el("b", {}, `attempt ${attempt.n}`), ` ${attempt.k}`, attempt.m ? el("bdi", { class: "first" }, attempt.m) : null),
      attempt.t ? el("pre", {}, attempt.t) : el("p", { class: "said" }, el("bdi", {}, attempt.m || "")),
      attempt.s ? strip({ x: { r: attempt.s } }) : null))];
  }

  const UNPRINTED = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;

  function quoted(word) {
    if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word)) return word;
    if (word.search(UNPRINTED) < 0) return `'${word.replaceAll("'", `'"'"'`)}'`;
    return `$'${word.replace(/[\\']/g, "\\$&").replace(UNPRINTED, escaped)}'`;
  }

  function commandOf(row) {
    const name = row.name.startsWith("-") ? `./${row.name}` : row.name;
    return row.job.rerun[isOfJob(row) ? 0 : 1].map((word) => quoted(word === "{}" ? name : word)).join(" ");
  }

  function reproduce(row) {
    const copyLink = copier("Copy link to this test", () => location.href.split("#")[0] + address({ ...none(), t: keyOf(row) }));
    if (!row.job.rerun[0].length) return [el("p", {}, copyLink)];
    const command = code(commandOf(row));
    command.id = "command";
    return [el("h3", {}, "Rerun"), el("div", { class: "command" }, command, copier("Copy", () => commandOf(row), command)), el("p", {}, copyLink)];
  }

  function copier(text, what, selected) {
    return button(text, async (event) => {
      const pressed = event.currentTarget;
      try {
        await navigator.clipboard.writeText(what());
        pressed.textContent = "Copied";
      } catch {
        if (selected) getSelection().selectAllChildren(selected);
        pressed.textContent = selected ? "Selected: press Ctrl+C" : "Copy it from the address bar";
      }
    }, { class: "copy" });
  }

  function inOtherCells(row) {
    const others = rows.filter((each) => each.number === row.number && each.job.base === row.job.base);
    if (others.length < 2) return [];
    return [el("h3", {}, `In ${others.length} cells`), el("ul", { class: "plain elsewhere" }, others.map((each) => el("li", {},
      glyph(statusOf(each)), each === row ? el("b", { class: "a" }, each.job.cell) : link(each, each.job.cell))))];
  }

  function jobFiles(row) {
    const all = row.job.ranks || row.x.r;
    if (!all || !Object.keys(row.job.files).length) return [];
    return [el("h3", {}, "Files of the ranks"), el("p", { class: "files" }, files(row.job, Object.values(row.job.files).join(","), "none"))];
  }

  function files(job, ranks, otherwise) {
    const shownRanks = [...new Set(runsOf(`${ranks}:x`).flatMap((each) => Array.from({ length: Math.min(count(each), 64) }, (_, n) => each.from + n)))]
      .sort((left, right) => left - right).slice(0, 64);
    const links = shownRanks.flatMap((rank) => Object.keys(FILES).filter((kind) => job.files[kind] && has(job.files[kind], rank))
      .map((kind) => el("a", { href: `${job.folder}/rank-${rank}.${kind}`, target: "_blank", rel: "noopener noreferrer" }, `rank ${rank} ${FILES[kind]}`)));
    return links.length ? links.flatMap((each, at) => (at ? [" · ", each] : [each])) : [otherwise];
  }

  // Keys

  const KEYS = [
    ["/", "search"], ["j, k, arrows", "move in the list of tests"], ["Enter", "open the test"], ["n, p", "open the next or previous failure"],
    ["m, f, t", "go to the matrix, the failures, the tests"], ["Esc", "close"], ["?", "this help"],
  ];

  function buildHelp() {
    fill(byId("help"), el("h2", { id: "help-title" }, "Keys"), el("dl", {}, KEYS.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
      button("Close", () => byId("help").close()));
    byId("help-button").addEventListener("click", () => byId("help").showModal());
  }

  function goToSection(id, focused) {
    byId(id).scrollIntoView();
    byId(focused)?.focus({ preventScroll: true });
  }

  function step(by) {
    const bad = shown.some(isBad) ? shown.filter(isBad) : rows.filter(isBad);
    if (!bad.length) return;
    const at = bad.findIndex((row) => keyOf(row) === state.t);
    open(bad[at < 0 ? 0 : (at + by + bad.length) % bad.length]);
  }

  const ACTIONS = {
    "/": () => goToSection("tests", "search"), "?": () => byId("help").showModal(), n: () => step(1), p: () => step(-1),
    m: () => goToSection("matrix"), f: () => goToSection("failures"), t: () => goToSection("tests", "list"),
    j: () => { goToSection("tests", "list"); }, k: () => { goToSection("tests", "list"); },
  };

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const typing = event.target.matches?.("input, select, textarea");
    if (event.key === "Escape" && state.t) close();
    else if (event.key === "Escape" && typing) byId("list").focus();
    else if (event.key === "ArrowDown" && event.target.id === "search") byId("list").focus();
    else if (!typing && Object.hasOwn(ACTIONS, event.key)) ACTIONS[event.key]();
    else return;
    event.preventDefault();
  }

  // Start

  async function start() {
    if (!("DecompressionStream" in self)) throw new Error("this browser cannot unpack the tests; a newer one can");
    await load();
    document.documentElement.classList.add("js");
    readAddress();
    showCounts();
    showMatrix();
    const leading = showFailures();
    buildTests();
    buildHelp();
    applyFilters();
    showSlowest();
    showSkips();
    await Promise.all([showDetail(), leading]);
    if (location.hash && !location.hash.includes("=")) byId(location.hash.slice(1))?.scrollIntoView();
    addEventListener("keydown", onKey);
    addEventListener("popstate", () => { if (readAddress()) { applyFilters(); showDetail(); } });
    document.documentElement.dataset.ready = "yes";
  }

  start().catch((error) => {
    const trouble = byId("trouble");
    trouble.textContent = `This page cannot show its tests: ${error.message}. Read summary.md and junit.xml beside it.`;
    trouble.hidden = false;
    document.documentElement.dataset.ready = "no";
  });
})();
