// Uses the page of findings as a person does, by events, and writes the results of the checks as
// JSON into an element. `expected` comes from the test that adds this script.
{
  const results = { failures: [...errors], checks: 0 };
  const check = (what, holds) => {
    results.checks += 1;
    if (!holds) results.failures.push(what);
  };
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const same = (what, found, wanted) => check(`${what}: ${JSON.stringify(found)}, expected ${JSON.stringify(wanted)}`, JSON.stringify(found) === JSON.stringify(wanted));

  same("dark", matchMedia("(prefers-color-scheme: dark)").matches, expected.dark);
  same("foreign elements", all("img, iframe, object, link[href]").length, 0);
  const heads = all("#findings-in article h3").map((one) => one.textContent);
  same("findings", heads.length, expected.sites.length);
  expected.sites.forEach((site) => check(`${site} is named`, heads.some((text) => text.includes(` in ${site},`))));
  same("events of each", all("#findings-in article").map((one) => all("table:first-of-type", one)[0].querySelectorAll("tbody tr").length), expected.steps);
  all("#findings-in article").forEach((one) => {
    const rows = all("tbody tr", one.querySelector("table"));
    check("the last event breaks the rule", rows[rows.length - 1].textContent.includes(`breaks ${expected.rule}`));
    check("the fix is shown", all("th, td", one).some((cell) => cell.textContent === "fix"));
  });
  check("the reason is shown", document.getElementById("findings-in").textContent.includes(expected.reason));
  same("counts", all("#counts-in tbody tr").length, expected.sites.length);
  check("a bar for the violations", all("#timeline-in svg path").length >= 4);
  check("the kinds are named", all("#timeline-in tbody td").some((one) => one.textContent === "violations"));
  all("h2").forEach((one) => check(`${one.textContent} has something`, one.parentElement.textContent.length > one.textContent.length + 10));
  all("nav a").forEach((one) => check(`${one.textContent} leads somewhere`, document.querySelector(one.getAttribute("href"))));
  all("select").forEach((one) => check("each choice has a name", one.getAttribute("aria-label")));
  all("table").forEach((one) => check("each table has a name and heads", one.getAttribute("aria-label") && one.querySelector("th[scope=col]")));
  all("svg[role=img]").forEach((one) => check("each chart has a name", one.getAttribute("aria-label")));

  // Only what is new, only what is accepted, and all again.
  const shown = () => all("#findings-in article").filter((one) => !one.hidden).map((one) => one.querySelector("h3").textContent);
  const pick = document.querySelector("select[aria-label=Accepted]");
  const choose = (value) => {
    pick.value = value;
    pick.dispatchEvent(new Event("change"));
    return shown();
  };
  check("new findings alone", choose("new").every((text) => text.includes("new")) && shown().length === 1);
  check("accepted findings alone", choose("accepted").every((text) => text.includes("accepted")) && shown().length === 1);
  same("all findings", choose("").length, expected.sites.length);
  results.shown = heads.length;

  const element = document.createElement("pre");
  element.id = "result";
  element.textContent = JSON.stringify(results).replace(/[<>&]/g, "?");
  document.body.append(element);
}
