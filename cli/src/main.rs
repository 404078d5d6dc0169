//! The program `cider`: arguments, progress, output and exit codes around the engine.
#![forbid(unsafe_code)]

mod args;
mod bundled;
mod cmd;
mod console;
mod failure;
mod interrupt;
mod log;
mod memory;
mod model;
mod numbers;
mod pictures;
mod progress;
mod server;
mod targets;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command, DebugCommand};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // What `info` and the other `debug` commands find out is their output; these have a course to report.
    let has_course = matches!(
        cli.command,
        Command::Bench(_)
            | Command::Run(_)
            | Command::Serve(_)
            | Command::Debug(DebugCommand::Logits(_))
    );
    log::start(cli.quiet || !has_course);
    let result = match &cli.command {
        Command::Bench(args) => cmd::bench::run(args, cli.quiet),
        Command::Debug(args) => cmd::debug::run(args),
        Command::Info(args) => cmd::info::run(args),
        Command::Run(args) => cmd::run::run(args, cli.quiet),
        Command::Serve(args) => cmd::serve::run(args, cli.quiet),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
