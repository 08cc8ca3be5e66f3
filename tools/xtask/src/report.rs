//! The pages of `granule report` and of `--report`: their tests in a browser, and `cargo xtask
//! report`, which makes a page about this kernel with each page size.

mod findings;
mod scene;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::browser::{Browser, Scheme};
use crate::guest::LIMIT;
use crate::{boot, image};
use xtask::files;
use xtask::machine::{self, Machine};
use xtask::workspace::{run, target_dir};

/// Added to the page before its own scripts.
const WATCH: &str = "<script>const errors = []; \
    addEventListener('error', (event) => errors.push(String(event.message))); \
    addEventListener('securitypolicyviolation', (event) => errors.push(`refused: ${event.blockedURI}`));\
    </script>";
/// Added after them.
const CHECK: &str = include_str!("report/check.js");

#[derive(Debug, Args)]
pub(crate) struct ReportOptions {
    /// File to write, instead of target/granule/report.html
    #[arg(short, long, value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// A picture of the top of the page too
    #[arg(long, value_name = "FILE.png")]
    picture: Option<PathBuf>,
    /// Further arguments for `granule report`, after `--`: other sources, --bench
    #[arg(last = true)]
    more: Vec<String>,
}

/// Boots the kernel with each page size and makes the page.
pub(crate) fn make(options: &ReportOptions) -> Result<()> {
    let image = image::image(None)?;
    let granule = boot::build_cli()?;
    let folder = tempfile::tempdir()?;
    let mut report = Command::new(granule);
    report.arg("report");
    let mut guests = Vec::new();
    for size in ["4k", "16k", "64k"] {
        let mut qemu = machine::virt();
        // The kernel touches all of its memory, and three machines are there at a time.
        qemu.args(["-cpu", "max", "-m", "2G"]);
        qemu.args(["-append", &format!("arm64.pagesize={size}"), "-kernel"]);
        qemu.arg(&image.path);
        let guest = Machine::start(qemu, size, folder.path(), LIMIT)?;
        report.arg(guest.source()).arg("--name");
        report.arg(format!("Granule, {} pages", size.to_uppercase()));
        guests.push(guest);
    }
    guests.iter_mut().try_for_each(ended)?;
    let own = target_dir().join("granule").join("report.html");
    let output = options.output.as_ref().unwrap_or(&own);
    report.args(&options.more).arg("-o").arg(output);
    run(report)?;
    println!("{}", output.display());
    if let Some(picture) = &options.picture {
        let page = output.canonicalize()?;
        Browser::get()?.picture(Scheme::Light, &page, (1280, 1000), picture)?;
        println!("{}", picture.display());
    }
    Ok(())
}

/// Waits until the guest has ended; its machine is kept.
fn ended(guest: &mut Machine) -> Result<()> {
    let mut qmp = guest.qmp()?;
    loop {
        let status = qmp.run("query-status", json!({})).map_err(Error::msg)?;
        if status["status"] == "shutdown" {
            return Ok(());
        }
        guest.wait()?;
    }
}

/// Tests the page of handwritten tables in the browser: its elements, keys and pointer, light and
/// dark, and printed.
pub(crate) fn check() -> Result<()> {
    let browser = Browser::get()?;
    let granule = boot::build_cli()?;
    let folder = target_dir().join("granule").join("report-check");
    files::folder(&folder)?;
    let folder = folder.canonicalize()?;
    let page = folder.join("page.html");
    let mut report = Command::new(granule);
    report.arg("report").args(scene::write(&folder)?);
    report.arg("-o").arg(&page);
    run(report)?;
    let text = fs::read_to_string(&page)?;
    let expected = scene::expected(&data(&text)?);
    in_browser(&browser, &folder, "page", &text, &expected, CHECK, 80)?;
    let page = folder.join("findings.html");
    let mut check = Command::new(boot::build_cli()?);
    check
        .args(findings::write(&folder)?)
        .arg("--report")
        .arg(&page);
    // There is a new finding.
    let status = check.stdout(Stdio::null()).status()?;
    ensure!(status.code() == Some(1), "granule check: {status}");
    let text = fs::read_to_string(&page)?;
    let expected = findings::expected(&data(&text)?);
    in_browser(
        &browser,
        &folder,
        "findings",
        &text,
        &expected,
        findings::CHECK,
        25,
    )
}

/// Shows a page in a browser, light and dark, runs the script in it, and prints the page.
fn in_browser(
    browser: &Browser,
    folder: &Path,
    of: &str,
    text: &str,
    expected: &Value,
    script: &str,
    least: u64,
) -> Result<()> {
    let page = folder.join(format!("{of}.html"));
    let mut pictures = Vec::new();
    for (scheme, name) in [(Scheme::Light, "light"), (Scheme::Dark, "dark")] {
        let mut expected = expected.clone();
        expected["dark"] = json!(scheme == Scheme::Dark);
        let checked = folder.join(format!("{of}-{name}.html"));
        fs::write(&checked, with_checks(text, &expected, script)?)?;
        let results = result(&browser.elements(scheme, &checked)?)?;
        let failures = results["failures"]
            .as_array()
            .context("the result has no failures")?;
        for failure in failures {
            println!("FAILED, {name}: {}", failure.as_str().unwrap_or_default());
        }
        let checks = results["checks"].as_u64().unwrap_or_default();
        ensure!(checks > least, "only {checks} checks ran");
        ensure!(
            failures.is_empty(),
            "{} of {checks} checks of {}",
            failures.len(),
            checked.display()
        );
        println!("{of}, {name}: {checks} checks, {}", results["shown"]);
        let to = folder.join(format!("{of}-{name}.png"));
        let picture = browser.picture(scheme, &page, (1400, 1400), &to)?;
        ensure!(
            picture.starts_with(b"\x89PNG"),
            "{} is not a PNG",
            to.display()
        );
        pictures.push(picture);
    }
    ensure!(
        pictures[0] != pictures[1],
        "the page is the same in light and dark"
    );
    let to = folder.join(format!("{of}.pdf"));
    let printed = browser.print(&page, &to)?;
    let pages = count(&printed, b"/Type /Page\n");
    ensure!(
        printed.starts_with(b"%PDF") && (1..60).contains(&pages),
        "{pages} printed pages in {}",
        to.display()
    );
    println!(
        "{pages} printed pages; pictures and print are in {}",
        folder.display()
    );
    Ok(())
}

fn data(page: &str) -> Result<Value> {
    let (_, after) = page
        .split_once(r#"id="data">"#)
        .context("the page has no data")?;
    let (data, _) = after
        .split_once("</script>")
        .context("its data have no end")?;
    Ok(serde_json::from_str(data)?)
}

fn with_checks(page: &str, expected: &Value, script: &str) -> Result<String> {
    let (head, body) = page.split_once("</head>").context("the page has no head")?;
    let Some((body, end)) = body.rsplit_once("</body>") else {
        bail!("the page has no end");
    };
    let expected = expected.to_string().replace('<', "\\u003c");
    Ok(format!(
        "{head}{WATCH}</head>{body}<script>const expected = {expected};\n{script}</script></body>{end}"
    ))
}

/// Parses the results of the checks from the elements of the page.
fn result(elements: &str) -> Result<Value> {
    let (_, after) = elements
        .split_once(r#"<pre id="result">"#)
        .context("the checks did not come to their end: open the page in a browser to see why")?;
    let (text, _) = after
        .split_once("</pre>")
        .context("the result has no end")?;
    Ok(serde_json::from_str(text)?)
}

fn count(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).filter(|it| *it == part).count()
}
