//! One trace, and its violations once a line is missing or changed.

use granule_testing::text::{assert_contains, assert_starts_with};
use std::process::Output;

use granule_cli::LinearMap;

use crate::hooked::granule;
use crate::trace::traces::{checked, find, record_ok, with_line};

/// One boot for all of them.
#[test]
fn each_fault_in_a_trace_is_found() {
    let text = record_ok(|request| request.linear_map = Some(LinearMap::Direct)).text();
    without_a_tlbi_the_page_may_still_be_found(&text);
    without_a_dsb_an_invalidation_is_in_vain(&text);
    barriers_round_new_mappings_are_missed(&text);
    boot_tables_that_stay_in_a_cache_are_found(&text);
    lines_that_a_loader_left_in_caches_are_maintained(&text);
    a_table_freed_early_or_behind_a_last_level_tlbi_is_found(&text);
    the_command_reports_it_with_its_exit_code(&text);
}

/// The rules that a trace breaks, each once.
fn rules(text: &str) -> Vec<&'static str> {
    let mut rules: Vec<_> = checked(text)
        .findings
        .iter()
        .map(|finding| finding.violation.rule.name())
        .collect();
    rules.dedup();
    rules
}

/// The line in which the self-check first clears the entry of its page. The next lines invalidate it.
fn first_unmap(text: &str) -> usize {
    let mut clearing = text
        .lines()
        .skip_while(|line| !line.starts_with("assume-visible "));
    let line = clearing.find(|line| line.starts_with("store ") && line.ends_with(" 0x0"));
    let line = line.expect("the trace clears no entry");
    let at = line.as_ptr() as usize - text.as_ptr() as usize;
    text[..at].lines().count() + 1
}

fn without_a_tlbi_the_page_may_still_be_found(text: &str) {
    let line = find(text, first_unmap(text), "tlbi ");
    let tampered = with_line(text, line, None);
    let checked = checked(&tampered);
    let first = checked.findings.first().expect("nothing was found");
    let rule = first.violation.rule.name();
    assert_eq!(rule, "stale-translation", "{}", checked.text());
    assert!(first.line.is_some_and(|at| at as usize > line));
    assert_eq!(first.earlier_line, Some(first_unmap(text) as u64));
}

fn without_a_dsb_an_invalidation_is_in_vain(text: &str) {
    let tlbi = find(text, first_unmap(text), "tlbi ");
    for line in [
        find(text, first_unmap(text), "dsb cpu0 ishst"),
        find(text, tlbi, "dsb cpu0 ish"),
    ] {
        let checked = checked(&with_line(text, line, None));
        let first = checked.findings.first().expect("nothing was found");
        let rule = first.violation.rule.name();
        assert_eq!(rule, "stale-translation", "{}", checked.text());
        assert!(first.missed_line.is_some(), "{}", checked.text());
    }
}

fn barriers_round_new_mappings_are_missed(text: &str) {
    let used = find(
        text,
        find(text, 1, "assume-visible cpu0 ") + 3,
        "store cpu0 ",
    );
    let without_dsb = with_line(text, find(text, used, "dsb cpu0 ishst"), None);
    assert_eq!(rules(&without_dsb), ["store-not-visible"]);
    let without_isb = with_line(text, find(text, used, "isb cpu0"), None);
    assert_eq!(rules(&without_isb), ["missing-isb"]);
}

fn boot_tables_that_stay_in_a_cache_are_found(text: &str) {
    let line = find(text, 1, "dc cpu0 ivac");
    assert!(!rules(&with_line(text, line, None)).is_empty());
    let line = find(text, 1, "tlbi cpu0 vmalle1");
    assert_eq!(
        rules(&with_line(text, line, None)).first(),
        Some(&"unknown-tlb")
    );
}

fn lines_that_a_loader_left_in_caches_are_maintained(text: &str) {
    let line = find(text, 1, "dc cpu0 civac");
    assert_eq!(
        rules(&with_line(text, line, None)).first(),
        Some(&"dirty-line-behind")
    );
    let line = find(text, 1, "ic cpu0 iallu");
    assert_eq!(rules(&with_line(text, line, None)), ["instruction-cache"]);
}

fn a_table_freed_early_or_behind_a_last_level_tlbi_is_found(text: &str) {
    let free = find(text, 1, "free ");
    let tlbi = text
        .lines()
        .take(free)
        .enumerate()
        .filter(|(_, line)| line.starts_with("tlbi "))
        .last()
        .unwrap();
    let last_level = tlbi.1.replace("vaae1is", "vaale1is");
    assert_ne!(last_level, tlbi.1);
    let rules_then = rules(&with_line(text, tlbi.0 + 1, Some(&last_level)));
    assert!(rules_then.contains(&"freed-in-use"), "{rules_then:?}");
    let freed = text.lines().nth(free - 1).unwrap();
    let early = with_line(text, tlbi.0, Some(freed));
    assert!(
        rules(&early).contains(&"freed-in-use"),
        "{:?}",
        rules(&early)
    );
}

fn command(trace: &str, options: &[&str]) -> Output {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), trace).unwrap();
    granule()
        .arg("check")
        .args(options)
        .arg(file.path())
        .output()
        .unwrap()
}

fn the_command_reports_it_with_its_exit_code(text: &str) {
    assert_eq!(
        command(text, &["--strict", "--bbm", "0"]).status.code(),
        Some(0)
    );
    let line = find(text, first_unmap(text), "tlbi ");
    let output = command(&with_line(text, line, None), &[]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert_starts_with(&printed, "line ");
    assert_contains(&printed, ": stale-translation: CPU 0 ");
    // Cut in the middle of a line, behind a line, and behind the header.
    let lines = text.lines().count();
    let header = text.find('\n').unwrap() + 1;
    let last = text.trim_end().rfind('\n').unwrap() + 1;
    for (length, place) in [
        (text.len() - 3, format!("line {lines}, column ")),
        (last, format!("line {}, column 1: ", lines)),
        (header, "line 2, column 1: ".into()),
        (header - 4, "line 1, column ".into()),
    ] {
        let output = command(&text[..length], &[]);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{length}: {printed}");
        assert!(printed.contains(&place), "{length}: {printed}");
    }
}
