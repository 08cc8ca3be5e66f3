// The page of what was found in a watched run or a trace. Text comes from guests and files: it is only ever
// set as text.

document.getElementById("titles").textContent = DATA.title;
document.title = `Rules of translation: ${DATA.title}`;
document.getElementById("result").textContent = DATA.result;

const times = (count) => (count === 1 ? "once" : `${number(count)} times`);
const total = (rows) => rows.reduce((sum, value) => sum + value, 0);

/** The events of an example, the one that breaks the rule last. */
function steps(finding) {
  const rows = finding.steps.map((step) => [
    number(step.event), String(step.cpu),
    step.name || step.address || "", step.text, step.role,
  ]);
  return table(`Events of ${finding.rule} in ${finding.site}`,
    [["event", "number"], ["CPU", "number"], ["place"], ["what"], ["its part"]], rows);
}

/** Whether a finding makes the run fail, and why not. */
function stateOf({ accepted, undecided }) {
  if (accepted !== null) return "accepted";
  return undecided === null ? "new" : "undecided";
}

function article(finding) {
  const sign = stateOf(finding) === "new"
    ? element("span", { class: "error", text: "✖ new" })
    : element("span", { class: "info", text: `ℹ ${stateOf(finding)}` });
  const made = element("article", { class: "source", "data-rule": finding.rule, "data-state": stateOf(finding) },
    element("h3", {}, sign, ` ${finding.rule} in ${finding.site}, ${times(finding.count)}`),
    element("p", { text: finding.example }));
  if (finding.steps.length) made.append(steps(finding));
  const facts = [["fix", finding.mend]];
  if (stateOf(finding) !== "new") facts.unshift([`${stateOf(finding)} because`, finding.accepted ?? finding.undecided]);
  const places = finding.places.map(({ name, address }) => (name ? `${name} (${address})` : address));
  if (places.length) facts.push([places.length === 1 ? "instruction" : "instructions", places.join(", ")]);
  made.append(table(`Facts about ${finding.rule} in ${finding.site}`, [["what"], [""]], facts));
  return made;
}

function drawFindings(holder) {
  const all = DATA.findings;
  if (!all.length) {
    holder.append(element("p", { text: "There are none." }));
    return;
  }
  const option = (value, text) => element("option", { value, text });
  const rules = [...new Set(all.map((finding) => finding.rule))];
  const rule = element("select", { "aria-label": "Rule" }, option("", "all rules"), ...rules.map((text) => option(text, text)));
  const inState = (name) => all.filter((it) => stateOf(it) === name).length;
  const states = ["new", "accepted", "undecided"].map((name) => option(name, `${name} (${inState(name)})`));
  const state = element("select", { "aria-label": "Accepted" }, option("", `all (${all.length})`), ...states);
  const articles = all.map(article);
  const filter = () => articles.forEach((one) => {
    const { rule: name, state: is } = one.dataset;
    one.hidden = (rule.value !== "" && name !== rule.value) || (state.value !== "" && is !== state.value);
  });
  [rule, state].forEach((one) => one.addEventListener("change", filter));
  const filters = element("p", { class: "filters" },
    element("label", {}, "rule ", rule), element("label", {}, "show ", state));
  holder.append(filters, ...articles);
}

function drawCounts(holder) {
  if (!DATA.findings.length) {
    holder.append(element("p", { text: "Nothing was counted." }));
    return;
  }
  const most = Math.max(...DATA.findings.map((finding) => finding.count));
  const rows = DATA.findings.map((finding) => [
    finding.rule, finding.site,
    element("span", { class: "measure", style: `width: ${((finding.count * 9) / most).toFixed(2)}rem`, "aria-hidden": true }),
    number(finding.count), String(finding.places.length),
  ]);
  holder.append(table("Violations by rule and function",
    [["rule"], ["function"], ["violations"], ["", "number"], ["instructions", "number"]], rows));
}

/** One line of bars for each kind, each with a scale of its own. */
function drawTimeline(holder, { rows, violations, events, width: each }) {
  const kinds = [...rows, { name: "violations", counts: violations, error: true }].filter(({ counts }) => total(counts) > 0);
  if (!kinds.length) {
    holder.append(element("p", { text: "No event was recorded." }));
    return;
  }
  const [width, left, high, gap] = [660, 140, 34, 6];
  const height = kinds.length * (high + gap) + 22;
  const bins = Math.max(...kinds.map(({ counts }) => counts.length));
  const step = (width - left - 8) / bins;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Events by kind over the run; the table beside it has the totals",
  });
  kinds.forEach(({ name, counts, error }, row) => {
    const bottom = row * (high + gap) + high;
    const most = Math.max(...counts, 1);
    const label = svg("text", { x: left - 8, y: bottom - high / 3, "text-anchor": "end" });
    label.textContent = name;
    drawing.append(svg("line", { x1: left, x2: width - 8, y1: bottom, y2: bottom, class: "grid" }), label);
    const path = counts.map((count, bin) => {
      if (!count) return "";
      const tall = Math.max((high * count) / most, 1.2);
      const [x, wide] = [left + bin * step, Math.max(step * 0.9, 1)];
      return `M${x.toFixed(1)} ${bottom}v${(-tall).toFixed(1)}h${wide.toFixed(1)}v${tall.toFixed(1)}z`;
    });
    const bars = svg("path", { d: path.join("") });
    bars.style.fill = error ? "var(--error)" : `var(--s${row % 6})`;
    drawing.append(bars);
  });
  const axis = svg("text", { x: left, y: height - 4, class: "soft" });
  axis.textContent = `${number(events)} events; a bar is ${number(each)} of them`;
  drawing.append(axis);
  const numbers = table("Events by kind", [["kind"], ["events", "number"], ["most in a bar", "number"]],
    kinds.map(({ name, counts }) => [name, number(total(counts)), number(Math.max(...counts))]));
  holder.append(element("div", { class: "pair" }, drawing, numbers));
}

function drawScope(holder) {
  const list = (title, lines, none) => {
    holder.append(element("h4", { text: title }));
    const items = lines.map((text) => element("li", { text }));
    holder.append(items.length ? element("ul", {}, ...items) : element("p", { text: none }));
  };
  list("Not checked", DATA.unchecked, "Everything was checked.");
  const policies = DATA.policies.map(({ name, allowed }) => `${name}: ${allowed ? "allowed" : "reported"}`);
  list("What the kernel may leave undone", policies, "");
  if (DATA.notes.length) list("Notes", DATA.notes, "");
  holder.append(element("h4", { text: "The run" }), table("The run", [["what"], ["value"]], DATA.facts));
}

drawFindings(document.getElementById("findings-in"));
drawCounts(document.getElementById("counts-in"));
drawTimeline(document.getElementById("timeline-in"), DATA.timeline);
drawScope(document.getElementById("scope-in"));
