//! Times cases, after the answer was checked.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cider_kernels::{Backend, ReferenceBackend};

use crate::cases::{Case, Failure, Prepared};
use crate::{compare_outcomes, outcome};

/// Prints a line for each case and backend: the median time, bytes and operations per second.
pub(crate) fn run(cases: &[Case], backends: &[(String, Box<dyn Backend>)]) -> ExitCode {
    let mut wrong = false;
    for case in cases {
        let expected = outcome(case, &ReferenceBackend);
        for (name, backend) in backends {
            let verdict =
                compare_outcomes(&expected, &outcome(case, backend.as_ref()), case.flushed)
                    .map_err(Failure::Wrong)
                    .and_then(|()| time(case, backend.as_ref()));
            match verdict {
                Ok(median) => println!("{}", line(case, name, median)),
                Err(what) => {
                    wrong = true;
                    println!("{}: {} on {name}: {what}", case.op, case.name);
                }
            }
        }
    }
    if wrong {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn line(case: &Case, backend: &str, median: Duration) -> String {
    let per_second = |count: usize| count as f64 / median.as_secs_f64() / 1e9;
    format!(
        "{:<10} {backend:<14} {:>10.1} us {:>7.1} GB/s {:>8.1} GOPS  {}",
        case.op,
        median.as_secs_f64() * 1e6,
        per_second(case.work.bytes),
        per_second(case.work.operations),
        case.name
    )
}

/// The median of runs that take a fifth of a second together, and at least three.
fn time(case: &Case, backend: &dyn Backend) -> Result<Duration, Failure> {
    let mut prepared: Box<dyn Prepared> = (case.prepare)(backend)?;
    prepared.run(backend)?;
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || start.elapsed() < Duration::from_millis(200) {
        let start = Instant::now();
        prepared.run(backend)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
