use super::*;
use serde_json::json;

#[test]
fn every_marker_has_a_figure_and_every_figure_a_marker() {
    let documents = read_all().unwrap();
    let mut used = Vec::new();
    for (name, text) in &documents {
        let markers = document::markers(text).unwrap();
        let figures = markers.iter().any(|m| m.kind != Kind::Measured);
        let heads = markers.iter().filter(|m| m.kind == Kind::Measured).count();
        assert_eq!(
            heads,
            usize::from(figures),
            "{name}: lines `<!-- measured -->`"
        );
        used.extend(markers.iter().map(|m| (m.kind, m.name.to_owned())));
    }
    let blocks = tables::BLOCKS.iter().map(|b| (Kind::Block, b.name, b.run));
    let Contents { runs, values } = contents().unwrap();
    let values = values.iter();
    let values = values.map(|v| (Kind::Value, v.name.as_str(), v.run.as_str()));
    let mut names = std::collections::BTreeSet::new();
    for (kind, name, run) in blocks.chain(values) {
        assert!(
            names.insert((kind == Kind::Block, name)),
            "{name} is there twice"
        );
        assert!(runs.iter().any(|r| r.name == run), "{name}: no run {run}");
        assert!(
            used.iter().any(|(k, n)| *k == kind && n == name),
            "no document has {name}"
        );
    }
}

#[test]
fn runs_have_names_of_their_own_and_stand_in_the_order_of_their_phases() {
    let runs = &contents().unwrap().runs;
    for (at, run) in runs.iter().enumerate() {
        assert!(
            runs[..at]
                .iter()
                .all(|other| other.name != run.name && other.phase <= run.phase)
        );
    }
}

const TEXT: &str = "<!-- measured -->\nFigures: commit old (x)\n<!-- end -->\n\
    Waits <!-- = direct-4k-dsb -->3<!-- / --> times in <!-- = direct-4k -->10,000<!-- / -->.\n";

fn measured(dsb: u64, instructions: u64) -> Measured {
    let json = json!({"rows": [{"page_size": 4096, "strategy": "direct",
        "linear_map": {"dsb": dsb, "instructions": instructions}}]});
    let said = Said {
        command: "granule bench".into(),
        json,
        ..Said::default()
    };
    Measured::from([("linear-4g", Ok(vec![said]))])
}

#[test]
fn a_figure_that_is_not_true_is_told_with_document_and_line() {
    let wrong = |dsb, instructions| check("a.md", TEXT, &measured(dsb, instructions)).unwrap();
    assert_eq!(wrong(3, 10_100), Vec::<String>::new());
    assert_eq!(wrong(4, 10_100), ["a.md:4: found `3`, measured `4`"]);
    assert_eq!(
        wrong(3, 11_000),
        ["a.md:4: found `10,000`, measured `11,000`"]
    );
}

#[test]
fn figures_are_written_with_the_commit() {
    let text = write(TEXT, &measured(4, 11_000), "new").unwrap();
    assert!(
        text.starts_with("<!-- measured -->\nFigures: commit new (written by"),
        "{text}"
    );
    assert!(
        text.contains("Waits <!-- = direct-4k-dsb -->4<!-- / --> times"),
        "{text}"
    );
    assert!(text.contains(">11,000<"), "{text}");
    // A failed run leaves its figures, and the commit that they belong to, unchanged.
    let failed = Measured::from([("linear-4g", Err("no".to_owned()))]);
    assert_eq!(write(TEXT, &failed, "new").unwrap(), TEXT);
}

#[test]
fn runs_that_were_not_made_keep_their_commit() {
    let runs = ["a", "b", "c"];
    let one = head("Figures: commit 1 (x)\n", &runs, |run| run == "a", "2").unwrap();
    assert!(
        one.starts_with("Figures: commit 2; of an earlier one: `b` 1, `c` 1 ("),
        "{one}"
    );
    let two = head(&one, &runs, |run| run == "b", "3").unwrap();
    assert!(
        two.starts_with("Figures: commit 3; of an earlier one: `a` 2, `c` 1 ("),
        "{two}"
    );
    let all = head(&two, &runs, |_| true, "4").unwrap();
    assert!(all.starts_with("Figures: commit 4 ("), "{all}");
    assert_eq!(head(&all, &runs, |_| false, "5"), None);
    let first = head("", &runs[..2], |run| run == "a", "1").unwrap();
    assert!(
        first.starts_with("Figures: commit 1; of an earlier one: `b` never ("),
        "{first}"
    );
}

#[test]
fn names_fit_patterns() {
    for (pattern, name, is) in [
        ("blocks", "blocks", true),
        ("blocks", "blocks-52", false),
        ("blocks*", "blocks-52", true),
        ("*-52", "blocks-52", true),
        ("l*-4*", "linear-4g", true),
        ("*x*", "linear-4g", false),
        ("*", "", true),
    ] {
        assert_eq!(fits(pattern, name), is, "{pattern} {name}");
    }
}
