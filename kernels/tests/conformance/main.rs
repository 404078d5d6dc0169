//! Conformance of the backends: every op on every backend against the reference, bit for bit, and the
//! reference against f64 within bounds computed from sizes and norms.
//!
//! `test` (the default) checks, `perf` times, `support` lists what each backend takes. A word that is none of
//! these keeps the cases whose op or name contains it.
#![expect(clippy::print_stdout, reason = "a test program reports on stdout")]

mod attention;
mod cases;
mod compare;
mod elementwise;
mod integers;
mod kv;
mod kv_append;
mod linear;
mod matmul_i32;
mod norm;
mod perf;
mod quantize;
mod refusals;
mod rope;
mod weights;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use cider_kernels::{Backend, CpuBackend, Isa, ReferenceBackend};

use crate::cases::{Case, Failure, Output};

fn main() -> ExitCode {
    let options = Options::parse(std::env::args().skip(1));
    let subjects = Subjects::find();
    match options.mode {
        Mode::List => {
            for case in options.select(all_cases()) {
                println!("{}: {}: test", case.op, case.name);
            }
            ExitCode::SUCCESS
        }
        Mode::Perf => perf::run(&options.select(perf_cases()), &subjects.backends),
        Mode::Support => support(&options.select(all_cases()), &subjects),
        Mode::Test => test(&options.select(all_cases()), &subjects),
    }
}

/// What the command line asks for.
struct Options {
    mode: Mode,
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    List,
    Perf,
    Support,
    Test,
}

impl Options {
    /// Understands the flags that `cargo test` hands to every test program.
    fn parse(mut args: impl Iterator<Item = String>) -> Self {
        let mut options = Self {
            mode: Mode::Test,
            filters: Vec::new(),
            skips: Vec::new(),
            exact: false,
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "test" => options.mode = Mode::Test,
                "perf" => options.mode = Mode::Perf,
                "support" => options.mode = Mode::Support,
                "--list" => options.mode = Mode::List,
                "--exact" => options.exact = true,
                "--skip" => options.skips.extend(args.next()),
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => {
                    args.next();
                }
                flag if flag.starts_with('-') => {}
                word => options.filters.push(word.to_owned()),
            }
        }
        options
    }

    fn select(&self, mut cases: Vec<Case>) -> Vec<Case> {
        cases.retain(|case| {
            let name = format!("{}: {}", case.op, case.name);
            let fits = |filter: &String| {
                if self.exact {
                    name == *filter
                } else {
                    name.contains(filter.as_str())
                }
            };
            (self.filters.is_empty() || self.filters.iter().any(fits))
                && !self.skips.iter().any(|skip| name.contains(skip.as_str()))
        });
        cases
    }
}

/// The backends under test, and those that this machine lacks.
struct Subjects {
    backends: Vec<(String, Box<dyn Backend>)>,
    /// Name and reason.
    missing: Vec<(String, String)>,
}

impl Subjects {
    /// Every instruction set on one, two and three threads.
    fn find() -> Self {
        let mut subjects = Self {
            backends: Vec::new(),
            missing: Vec::new(),
        };
        for (isa, threads) in Isa::ALL
            .into_iter()
            .flat_map(|isa| [1, 2, 3].map(|n| (isa, n)))
        {
            let name = format!("{isa} x {threads}");
            let backend = isa.why_not().map_or_else(
                || CpuBackend::new(isa, threads).map_err(|error| error.to_string()),
                Err,
            );
            match backend {
                Ok(backend) => subjects.backends.push((name, Box::new(backend))),
                Err(reason) => subjects.missing.push((name, reason)),
            }
        }
        subjects
    }
}

/// Counts of one op.
#[derive(Default)]
struct Tally {
    cases: usize,
    passed: usize,
    failed: usize,
    skipped: usize,
    /// The largest share of a bound that the reference used.
    bound_used: f64,
}

fn test(cases: &[Case], subjects: &Subjects) -> ExitCode {
    for (name, reason) in &subjects.missing {
        println!("skipped {name}: {reason}");
    }
    // A panic is reported as the failure of its case.
    std::panic::set_hook(Box::new(|_| {}));
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    for case in cases {
        let tally = tallies.entry(case.op).or_default();
        tally.cases += 1;
        tally.skipped += subjects.missing.len();
        let expected = outcome(case, &ReferenceBackend);
        let mut verdicts = vec![("reference", check_reference(case, &expected, tally))];
        for (name, backend) in &subjects.backends {
            let got = outcome(case, backend.as_ref());
            let flushed = if name.starts_with(Isa::Avx512Bf16.name()) {
                case.flushed
            } else {
                0.0
            };
            verdicts.push((name, compare_outcomes(&expected, &got, flushed)));
        }
        for (name, verdict) in verdicts {
            if let Err(what) = verdict {
                tally.failed += 1;
                println!("FAILED {}: {} on {name}: {what}", case.op, case.name);
            } else {
                tally.passed += 1;
            }
        }
    }
    report(&tallies)
}

fn report(tallies: &BTreeMap<&str, Tally>) -> ExitCode {
    for (op, tally) in tallies {
        let Tally {
            cases,
            passed,
            failed,
            skipped,
            bound_used,
        } = tally;
        println!(
            "{op:<10} {cases:>5} cases {passed:>6} passed {failed:>4} failed {skipped:>5} skipped, {:>5.1} % of a bound used",
            100.0 * bound_used
        );
    }
    let sum = |of: fn(&Tally) -> usize| tallies.values().map(of).sum::<usize>();
    let failed = sum(|tally| tally.failed);
    println!(
        "{} passed, {failed} failed, {} skipped",
        sum(|tally| tally.passed),
        sum(|tally| tally.skipped)
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Which backend takes which case: a line for each case that a backend refuses, and its counts.
fn support(cases: &[Case], subjects: &Subjects) -> ExitCode {
    for (name, reason) in &subjects.missing {
        println!("{name}: not on this machine: {reason}");
    }
    let reference: (String, Box<dyn Backend>) =
        ("reference".to_owned(), Box::new(ReferenceBackend));
    for (name, backend) in std::iter::once(&reference).chain(&subjects.backends) {
        let mut taken: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for case in cases.iter().filter(|case| case.refused.is_none()) {
            let counts = taken.entry(case.op).or_default();
            counts.1 += 1;
            match outcome(case, backend.as_ref()) {
                Err(Failure::Refused(what)) => {
                    println!("{name}: {}: {}: {what}", case.op, case.name);
                }
                _ => counts.0 += 1,
            }
        }
        println!("{name}: {}", backend.describe());
        for (op, (taken, all)) in taken {
            println!("{name}: {op}: {taken} of {all} cases");
        }
    }
    ExitCode::SUCCESS
}

/// Prepares and runs a case; a panic is a wrong result.
fn outcome(case: &Case, backend: &dyn Backend) -> Result<Vec<Output>, Failure> {
    let run = || {
        let mut prepared = (case.prepare)(backend)?;
        prepared.run(backend)?;
        prepared.outputs()
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Failure::Wrong(format!(
            "panicked: {}",
            text.unwrap_or_default()
        )))
    })
}

fn check_reference(
    case: &Case,
    outcome: &Result<Vec<Output>, Failure>,
    tally: &mut Tally,
) -> Result<(), String> {
    match (outcome, &case.refused) {
        (Ok(_), Some(_)) => Err("was not refused".to_owned()),
        (Err(Failure::Refused(what)), Some(words)) => {
            let missing = words.iter().find(|word| !what.contains(word.as_str()));
            match missing {
                None if !what.contains('\n') => Ok(()),
                None => Err(format!("refused in several lines: {what:?}")),
                Some(word) => Err(format!("refused without `{word}`: {what}")),
            }
        }
        (Err(failure), _) => Err(failure.to_string()),
        (Ok(outputs), None) => {
            if let Some(twin) = &case.twin {
                let twin = catch_unwind(AssertUnwindSafe(|| twin(outputs)));
                let used = twin.unwrap_or_else(|_| Err("the twin panicked".to_owned()))?;
                tally.bound_used = tally.bound_used.max(used);
            }
            Ok(())
        }
    }
}

fn compare_outcomes(
    expected: &Result<Vec<Output>, Failure>,
    got: &Result<Vec<Output>, Failure>,
    flushed: f64,
) -> Result<(), String> {
    match (expected, got) {
        (Ok(expected), Ok(got)) => compare::same_but_for(expected, got, flushed),
        (Err(Failure::Refused(expected)), Err(Failure::Refused(got))) if expected == got => Ok(()),
        (Err(Failure::Refused(_)), Ok(_)) => Err("was not refused".to_owned()),
        (Err(Failure::Refused(expected)), Err(got)) => {
            Err(format!("{got}, expected refused: {expected}"))
        }
        (_, Err(got)) => Err(got.to_string()),
        (Err(Failure::Wrong(_)), Ok(_)) => Err("the reference has no result".to_owned()),
    }
}

fn all_cases() -> Vec<Case> {
    [
        quantize::cases(),
        weights::cases(),
        linear::cases(),
        matmul_i32::cases(),
        integers::cases(),
        norm::cases(),
        rope::cases(),
        attention::cases(),
        kv_append::cases(),
        refusals::cases(),
        elementwise::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn perf_cases() -> Vec<Case> {
    [
        quantize::perf_cases(),
        linear::perf_cases(),
        norm::perf_cases(),
        rope::perf_cases(),
        attention::perf_cases(),
        elementwise::perf_cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
