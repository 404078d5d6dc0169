//! The help texts. After a change, `CIDER_SNAPSHOTS=write cargo test -p cider-cli --test e2e snapshots` writes them anew.

use std::{env, fs};

use crate::support::{root, run};

#[test]
fn help_is_as_it_was() {
    let commands = [
        "",
        "run",
        "serve",
        "bench",
        "bench attention",
        "bench linear",
        "bench model",
        "bench serve",
        "info",
        "debug",
        "debug logits",
        "debug preprocess",
        "debug tokenize",
    ];
    for command in commands {
        let arguments = command.split_whitespace().chain(["--help"]);
        let help = run(arguments).succeeded().stdout;
        let name = format!("help {command}").trim().replace(' ', "-");
        let path = root().join(format!("cli/tests/e2e/snapshots/{name}.txt"));
        if env::var("CIDER_SNAPSHOTS").is_ok_and(|value| value == "write") {
            fs::write(&path, &help).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap();
        assert_eq!(help, expected, "{} is out of date", path.display());
    }
}
