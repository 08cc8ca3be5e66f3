// Uses the page as a person does, by events, and writes the results of the checks as JSON into an
// element. `expected` comes from the test that adds this script.
{
  const results = { failures: [...errors], checks: 0 };
  const check = (what, holds) => {
    results.checks += 1;
    if (!holds) results.failures.push(what);
  };
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const same = (what, found, wanted) => check(`${what}: ${JSON.stringify(found)}, expected ${JSON.stringify(wanted)}`, JSON.stringify(found) === JSON.stringify(wanted));

  // Colours: the scheme is the asked one, and text can be read on what is behind it.
  const channel = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  };
  const contrast = (one, other) => {
    const [a, b] = [light(one), light(other)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const probe = document.body.appendChild(document.createElement("i"));
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  same("dark", light(colour("--back")) < light(colour("--ink")), expected.dark);
  for (const name of ["--ink", "--soft", "--error", "--warning", "--info", "--focus"]) {
    for (const back of ["--back", "--raised"]) {
      const found = contrast(colour(name), colour(back));
      check(`${name} on ${back} has a contrast of ${found.toFixed(1)}, expected 4.5`, found >= 4.5);
    }
  }
  const fills = [0, 1, 2, 3, 4, 5, 6, 7].map((at) => `--l${at}`).concat(["--r", "--rw", "--rx", "--rwx", "--x", "--other"]);
  for (const name of fills) {
    const found = contrast(colour(name), LIGHT_LETTERS.has(name) ? "rgb(255, 255, 255)" : "rgb(0, 0, 0)");
    check(`letters on ${name} have a contrast of ${found.toFixed(1)}, expected 4.5`, found >= 4.5);
  }
  probe.remove();

  // What is there.
  same("sources", all(".source h3").map((one) => one.textContent), expected.names);
  same("foreign elements", all("img, iframe, object, link[href]").length, 0);
  const shown = maps.map((map) => ({ ranges: map.tree.ranges, cells: map.cells.length, rows: map.rows.length }));
  same("ranges", shown.map((one) => one.ranges), expected.ranges);
  results.shown = shown;
  maps.forEach((map, at) => {
    const segments = all(".cell", map.map);
    check(`source ${at} has ${segments.length} segments`, segments.length >= map.rows.length);
    const covered = new Set(map.rows.flatMap((row) => row.segments.flatMap((one) => Array.from({ length: one.j - one.i }, (_, k) => one.i + k))));
    same(`cells of source ${at} that are in a row`, covered.size, map.cells.length);
    same(`a note on what is put together, of source ${at}`, !map.remarks.hidden, map.cells.length < map.tree.ranges);
    check(`map ${at} is reached by keys and has a name`, map.map.tabIndex === 0 && map.map.getAttribute("role") && map.map.getAttribute("aria-label"));
  });
  same("findings", all("#findings-in tbody tr").length, expected.findings);
  same("rows of benchmarks", all("#benches-in tbody tr").length, expected.bench_rows);
  check("benchmarks are shown", !document.getElementById("benches").hidden);
  all("input, select, button").forEach((one) => {
    const name = one.getAttribute("aria-label") || one.textContent || (one.labels && one.labels.length);
    check(`${one.tagName} ${one.outerHTML.slice(0, 60)} has a name`, name);
  });
  all("table").forEach((one) => check("each table has a name and heads", one.getAttribute("aria-label") && one.querySelector("th[scope=col]")));
  all("svg[role=img], .stack").forEach((one) => check("each chart has a name", one.getAttribute("aria-label")));

  // Keys.
  const [map] = maps;
  const key = (name) => {
    const event = new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true });
    map.map.dispatchEvent(event);
    return event.defaultPrevented;
  };
  const detail = () => map.detail.textContent;
  const labels = () => all(".label", map.map).map((one) => one.textContent);
  const first = detail();
  check(`the detail begins with the first range: ${first}`, first.includes(expected.first_address));
  check("→ is taken", key("ArrowRight"));
  const second = detail();
  check("→ shows another cell", second !== first && map.map.querySelectorAll(".cell.at").length === 1);
  key("ArrowLeft");
  same("← goes back", detail(), first);
  key("End");
  key("Home");
  same("Home is the first of the row", detail(), first);
  key("ArrowDown");
  check("↓ shows another row", detail() !== first);
  key("ArrowUp");
  same("↑ goes back", detail(), first);
  const rows = labels();
  check("+ is taken", key("+"));
  check("+ goes into the row", labels().join() !== rows.join());
  same("+ keeps the cell", detail(), first);
  for (let at = 0; at < 30; at += 1) key("ArrowRight");
  key("+");
  key("+");
  check("three + show where they are", map.where.textContent.includes("0x"));
  key("0");
  same("0 shows all", labels(), rows);
  key("+");
  key("-");
  same("- goes back", labels(), rows);
  check("other keys are left to the browser", !key("Tab") && !key("a"));

  // The pointer, in each row and in the hole of the second one.
  const point = (bar, x) => {
    const box = bar.getBoundingClientRect();
    bar.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box.left + box.width * x, clientY: box.top + 3 }));
  };
  all(".bar", map.map).forEach((bar, at) => {
    const before = map.cursor;
    point(bar, 0.3);
    const row = map.rows[at];
    const cell = map.cells[map.cursor];
    check(`the pointer in row ${at} shows a cell of it`, cell.offset < row.high && cell.end > row.low && (at === 0 || map.cursor !== before));
  });
  check("the pointer's address is shown with its output", /pointer0xffffff/.test(detail()) && detail().includes("→"));

  point(map.bars[1], 0.7);
  check("a hole is shown", detail().includes("is not mapped"));

  // Colours by access, and their legend.
  const legend = () => all("#legend li").map((one) => one.textContent);
  same("legend by leaf", legend(), expected.legend_leaf);
  const painted = () => all(".cell", map.map).map((one) => one.style.background).join();
  const before = painted();
  document.querySelector("input[value=access]").click();
  same("legend by access", legend(), expected.legend_access);
  check("access changes the colours", painted() !== before);
  check("letters show it too", all(".cell b", map.map).some((one) => one.textContent === "rw-"));

  // Findings lead into the map, and can be chosen by severity.
  const link = document.querySelector("#findings-in tbody a");
  link.click();
  check("a finding's link goes to its map", document.activeElement === maps[0].map);
  check(`the detail has the finding: ${detail()}`, detail().includes("writable-executable"));
  const pick = document.querySelector("#findings-in select");
  pick.value = "error";
  pick.dispatchEvent(new Event("change"));
  same("errors", all("#findings-in tbody tr").filter((row) => !row.hidden).length, expected.errors);

  // An address, mapped or not or none.
  const find = (text) => {
    map.find.value = text;
    map.tools.querySelector("form").requestSubmit();
    return detail();
  };
  check("an address is found", find(expected.device).includes("device-nGnRE"));
  check("an address that is not mapped is reported", find("0xffffff8010000000").includes("not mapped"));
  check("text that is not an address is reported", find("<b>x").includes("not an address") && !map.detail.querySelector("b"));

  // Another measure.
  const measure = document.querySelector("#benches-in select");
  const table = () => document.querySelector("#benches-in tbody").textContent;
  const one = table();
  measure.value = "1";
  measure.dispatchEvent(new Event("change"));
  check("another measure has other numbers", table() !== one);
  same("ratio of the first row", document.querySelector("#benches-in tbody tr").lastElementChild.textContent, "0.500");

  const element = document.createElement("pre");
  element.id = "result";
  element.textContent = JSON.stringify(results).replace(/[<>&]/g, "?");
  document.body.append(element);
}
