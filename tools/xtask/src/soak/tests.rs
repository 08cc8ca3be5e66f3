//! The course of runs, with cases that only report that they ran.

use super::*;
use std::sync::Mutex;

fn some_cases() -> Vec<SoakCase> {
    cases::all(1, 300).unwrap().into_iter().take(40).collect()
}

fn run_in<'a>(folder: &Path, tree: &'a dyn Fn() -> Result<String>) -> Run<'a> {
    let fresh = State {
        commit: "c".into(),
        image: "i".into(),
        seed: 1,
        done: BTreeMap::new(),
    };
    let file = folder.join("state.json");
    Run {
        state: state::resume(&file, fresh).unwrap(),
        file,
        stop: Stop::never(),
        tree,
    }
}

/// Runs the remaining cases and returns those that began.
fn go_on(
    run: &mut Run<'_>,
    cases: &[SoakCase],
    work: impl Fn(&SoakCase, &Stop) -> Outcome + Sync,
) -> (Vec<String>, Result<()>) {
    let begun = Mutex::new(Vec::new());
    let todo: Vec<_> = cases
        .iter()
        .filter(|case| !run.state.done.contains_key(&case.name))
        .collect();
    let result = run.all(&todo, &|case, stop| {
        begun.lock().unwrap().push(case.name.clone());
        work(case, stop)
    });
    (begun.into_inner().unwrap(), result)
}

fn line(run: &Run<'_>, cases: &[SoakCase]) -> String {
    let names = cases.iter().map(|case| case.name.as_str());
    run.state.line(run.state.progress(names))
}

#[test]
fn an_interrupted_run_is_gone_on_with_and_counts_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let cases = some_cases();
    let same = || Ok("c".to_owned());
    let mut first = run_in(folder.path(), &same);
    let victim = cases[3].name.as_str();
    let (begun, result) = go_on(&mut first, &cases, |case, stop| {
        if case.name == victim {
            stop.ask();
            return Outcome::Unfinished;
        }
        Outcome::Passed
    });
    result.unwrap();
    assert!(begun.len() < cases.len() && begun.contains(&victim.to_owned()));
    assert_eq!(finish(&first, &cases, false).unwrap(), ExitCode::FAILURE);
    let done = begun.len() - 1;
    assert!(
        line(&first, &cases).starts_with(&format!("soak: {done} of 40 cases so far, 0 failed")),
        "{}",
        line(&first, &cases)
    );

    let mut second = run_in(folder.path(), &same);
    let (rest, result) = go_on(&mut second, &cases, |case, _| {
        if case.name == victim {
            return Outcome::Failed("a test".into());
        }
        Outcome::Passed
    });
    result.unwrap();
    assert_eq!(rest.len(), cases.len() - done);
    assert!(rest.contains(&victim.to_owned()));
    assert_eq!(
        line(&second, &cases),
        "soak: 40 cases, 1 failed, seed 1, commit c"
    );
    assert_eq!(finish(&second, &cases, false).unwrap(), ExitCode::FAILURE);

    // A failure stays a failure: no case is repeated until it passes.
    let mut third = run_in(folder.path(), &same);
    let (none, result) = go_on(&mut third, &cases, |_, _| Outcome::Passed);
    result.unwrap();
    assert!(none.is_empty());
    assert_eq!(finish(&third, &cases, false).unwrap(), ExitCode::FAILURE);
}

#[test]
fn a_whole_run_without_failures_is_a_success() {
    let folder = tempfile::tempdir().unwrap();
    let cases = some_cases();
    let same = || Ok("c".to_owned());
    let mut run = run_in(folder.path(), &same);
    go_on(&mut run, &cases, |_, _| Outcome::Passed).1.unwrap();
    assert_eq!(finish(&run, &cases, false).unwrap(), ExitCode::SUCCESS);
}

#[test]
fn cases_that_want_the_machine_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let cases = some_cases();
    let same = || Ok("c".to_owned());
    let mut run = run_in(folder.path(), &same);
    let busy = Mutex::new((0, 0));
    go_on(&mut run, &cases, |case, _| {
        let now = {
            let mut busy = busy.lock().unwrap();
            busy.0 += 1;
            busy.1 = busy.1.max(busy.0);
            busy.0
        };
        assert!(!case.alone || now == 1, "{}", case.name);
        std::thread::sleep(Duration::from_millis(5));
        busy.lock().unwrap().0 -= 1;
        Outcome::Passed
    })
    .1
    .unwrap();
    let (left, most) = busy.into_inner().unwrap();
    assert!(left == 0 && most <= graph::parallel(), "{most} at a time");
    assert!(most > 1 || graph::parallel() == 1);
}

#[test]
fn results_of_another_tree_are_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cases = some_cases();
    let changed = AtomicBool::new(false);
    let tree = || {
        Ok(if changed.load(Ordering::Relaxed) {
            "c+changes.1"
        } else {
            "c"
        }
        .to_owned())
    };
    // One after the other, in this order.
    let mut alone = cases.iter().filter(|case| case.alone);
    let (before, victim) = (&alone.next().unwrap().name, &alone.next().unwrap().name);
    let mut run = run_in(folder.path(), &tree);
    let file = run.file.clone();
    let (_, result) = go_on(&mut run, &cases, |case, _| {
        if case.name == *victim {
            // The result before is kept first.
            let kept = || std::fs::read_to_string(&file).unwrap_or_default();
            let end = Instant::now() + Duration::from_secs(60);
            while !kept().contains(before) {
                assert!(Instant::now() < end, "{before} was not kept");
                std::thread::sleep(Duration::from_millis(2));
            }
            changed.store(true, Ordering::Relaxed);
        }
        Outcome::Passed
    });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("c+changes.1"), "{error}");
    let kept = run_in(folder.path(), &tree).state.done;
    assert!(
        kept.contains_key(before) && !kept.contains_key(victim),
        "{kept:?}"
    );
}

#[test]
fn logs_have_plain_names() {
    let name = log(Path::new("/l"), "fuzz walker, 10 cases");
    assert_eq!(name, Path::new("/l/fuzz-walker--10-cases.txt"));
}
