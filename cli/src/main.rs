//! The program `cider`: arguments, progress, output and exit codes around the engine.
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod failure;
mod log;
mod memory;
mod model;
mod output;
mod progress;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    log::start(cli.quiet);
    let result = match &cli.command {
        Command::Debug(args) => cmd::debug::run(args),
        Command::Info(args) => cmd::info::run(args),
        Command::Run(args) => cmd::run::run(args, cli.quiet),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
