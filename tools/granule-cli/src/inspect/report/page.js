// Puts the page together: maps, legend, charts, findings and benchmarks.

const maps = DATA.sources.map((source, number) => new SourceMap(source, number, "leaf"));
const names = DATA.sources.map((source) => source.name);
document.getElementById("titles").textContent = names.length < 4 ? names.join(" · ") : `of ${names.length} sources`;
document.title = `Page tables: ${names.join(", ")}`;
document.getElementById("sources").append(...maps.map((map) => map.element));

/** The looks that the maps have, in their order. */
function drawLegend(mode) {
  const looks = new Map();
  for (const tree of DATA.sources.flatMap((source) => source.trees)) {
    const add = (look) => looks.set(look.letters, look);
    if (mode === "leaf") tree.kinds.forEach((kind) => add(lookOfLeaf(kind)));
    else {
      tree.attributes.forEach(({ access }) => add(lookOfAccess(access)));
      for (const cell of tree.cells) if (Array.isArray(cell[3])) cell[3].forEach((part) => add(lookOfAccess(part[1])));
    }
  }
  const sorted = [...looks.values()].sort((one, other) => one.order - other.order);
  document.getElementById("legend").replaceChildren(...sorted.map((look) =>
    element("li", {}, swatch(look), mode === "leaf" ? look.words : `${look.letters} ${look.words}`)));
  if (DATA.sources.some((source) => source.findings.length)) {
    document.getElementById("legend").append(element("li", {}, element("span", { class: "swatch found", "aria-hidden": true }), "finding"));
  }
}

function setMode(mode) {
  drawLegend(mode);
  maps.forEach((map) => map.setMode(mode));
}
document.getElementById("modes").addEventListener("change", (event) => setMode(event.target.value));
const chosen = document.querySelector("#modes input:checked");
setMode(chosen ? chosen.value : "leaf");

// Letters are there where there is room, which changes with the window.
let resized = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => maps.forEach((map) => map.draw()));
});

drawCharts(document.getElementById("charts-in"), DATA.sources);

function drawFindings(holder) {
  const all = DATA.sources.flatMap((source, at) => source.findings.map((finding) => ({ finding, at })));
  const more = DATA.sources.flatMap((source) => source.not_listed.map((one) => ({ source, ...one })));
  if (!all.length) {
    holder.append(element("p", { text: "There are none." }));
    return;
  }
  const counts = ["error", "warning", "info"].map((severity) => [severity, all.filter(({ finding }) => finding.severity === severity).length]);
  const pick = element("select", { "aria-label": "Severity" }, element("option", { value: "", text: `all (${all.length})` }),
    ...counts.filter(([, count]) => count).map(([severity, count]) => element("option", { value: severity, text: `${severity} (${count})` })));
  const rules = [...new Set(all.map(({ finding }) => finding.rule))];
  const rule = element("select", { "aria-label": "Rule" }, element("option", { value: "", text: "all rules" }), ...rules.map((text) => element("option", { value: text, text })));
  const body = element("tbody");
  const SIGNS = { error: "✖ error", warning: "▲ warning", info: "ℹ info" };
  for (const { finding, at } of all) {
    const link = element("a", { href: "#maps", class: "address", text: finding.address });
    link.addEventListener("click", (event) => {
      event.preventDefault();
      body.querySelectorAll(".chosen").forEach((row) => row.classList.remove("chosen"));
      link.closest("tr").classList.add("chosen");
      const tree = DATA.sources[at].trees.findIndex((one) => one.owner === finding.owner);
      if (tree >= 0) maps[at].choose(tree);
      maps[at].goTo(finding.address);
    });
    body.append(element("tr", { "data-severity": finding.severity, "data-rule": finding.rule },
      element("td", { class: finding.severity, text: SIGNS[finding.severity] }), element("td", { text: finding.rule }), element("td", {}, link),
      element("td", { class: "number", text: size(finding.bytes) }), element("td", { text: DATA.sources[at].name }), element("td", { text: finding.owner }), element("td", { text: finding.text })));
  }
  const filter = () => {
    for (const row of body.rows) row.hidden = (pick.value && row.dataset.severity !== pick.value) || (rule.value && row.dataset.rule !== rule.value);
  };
  pick.addEventListener("change", filter);
  rule.addEventListener("change", filter);
  const heads = ["severity", "rule", "address", "size", "source", "tables of", "what it leads to"].map((text) => element("th", { text, scope: "col", class: text === "size" ? "number" : null }));
  holder.append(element("div", { class: "filters" }, element("label", {}, "severity ", pick), element("label", {}, "rule ", rule)),
    element("div", { class: "scroll" }, element("table", { "aria-label": "Findings" }, element("thead", {}, element("tr", {}, ...heads)), body)));
  for (const { source, rule: name, severity, findings } of more) {
    holder.append(element("p", { class: "note", text: `${source.name}: ${plural(findings, "more finding", "more findings")} of ${name} (${severity}), not listed.` }));
  }
}
drawFindings(document.getElementById("findings-in"));

if (DATA.benches.length) {
  drawBenches(document.getElementById("benches-in"), DATA.benches);
  document.getElementById("benches").hidden = false;
  document.getElementById("to-benches").hidden = false;
}
// Results of benchmarks need no page tables beside them.
if (!names.length) for (const id of ["maps", "charts", "findings"]) document.getElementById(id).hidden = true;
