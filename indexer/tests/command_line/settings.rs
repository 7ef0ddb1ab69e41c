//! Settings: each is an argument, an environment variable and a line of the file, in one table of docs/settings.md; and the help
//! of every command is as it was.

use std::{fmt::Write, path::Path};

use clap::{Arg, ArgAction, Args, Command};
use expect_test::expect_file;
use kvtide::config::{Config, File, LogConfig, with_environment};
use kvtide_tests::Folder;

use crate::finished::{kvtide, kvtide_in};

const INTRODUCTION: &str = "# Settings

What `kvtide serve` can be told: by flag, by environment variable, or in the file that `--config` names
([configuration.md](configuration.md)). Flags go before the environment, and that before the file.
";

fn command() -> Command {
    with_environment(Config::augment_args(LogConfig::augment_args(Command::new("kvtide"))))
}

/// Section and name of an argument that the file has too.
fn place(argument: &Arg) -> Option<(&str, &str)> {
    argument.get_id().as_str().split_once('.')
}

/// The table of docs/settings.md.
fn table() -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut section = "";
    for argument in command().get_arguments() {
        let Some((of, name)) = place(argument) else { continue };
        if of != section {
            section = of;
            let title = if section == "stream" { "[[stream]]".to_owned() } else { format!("[{section}]") };
            let _ = write!(
                text,
                "\n## `{title}`\n\n| file | flag | environment | default | meaning |\n|---|---|---|---|---|\n"
            );
        }
        let flag = argument.get_long().unwrap();
        let value = argument.get_value_names().map_or(String::new(), |names| format!(" {}", names[0]));
        let value = if matches!(argument.get_action(), ArgAction::SetTrue) { String::new() } else { value };
        let defaults: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match argument.get_action() {
            ArgAction::SetTrue => "false".to_owned(),
            _ => defaults.join(","),
        };
        let (variable, help) =
            (argument.get_env().unwrap().to_string_lossy(), argument.get_help().unwrap().to_string());
        let _ = writeln!(text, "| `{name}` | `--{flag}{value}` | `{variable}` | {default} | {help} |");
    }
    text
}

#[test]
fn the_table_is_that_of_the_command() {
    expect_file!["../../../docs/settings.md"].assert_eq(&table());
}

#[test]
fn every_help_is_as_it_was() {
    let commands: [&[&str]; 11] = [
        &[],
        &["serve"],
        &["demo"],
        &["query"],
        &["check-config"],
        &["record"],
        &["replay"],
        &["storm"],
        &["token"],
        &["token", "new"],
        &["top"],
    ];
    for command in commands {
        let finished = kvtide(&[command, &["--help"]].concat());
        assert_eq!((finished.code, finished.error.as_str()), (0, ""), "{command:?}");
        let name = [&["kvtide"], command].concat().join("-");
        expect_file![format!("{}/tests/command_line/help/{name}.txt", env!("CARGO_MANIFEST_DIR"))]
            .assert_eq(&finished.out);
    }
}

/// Values of which each argument takes at least two.
const VALUES: [&str; 9] = [
    "7",
    "8",
    "\"127.0.0.1:7\"",
    "\"127.0.0.1:8\"",
    "\"json\"",
    "\"text\"",
    "\"debug\"",
    "[\"a\"]",
    "[\"b\"]",
];

#[test]
fn flags_go_before_the_file_for_every_setting() {
    let folder = Folder::new();
    let mut seen = 0;
    for argument in command().get_arguments() {
        let Some((section, name)) = place(argument).filter(|&(section, _)| section != "stream") else {
            continue;
        };
        if matches!(argument.get_action(), ArgAction::SetTrue) {
            let file = folder.write("file.toml", format!("[{section}]\n{name} = true\n"));
            let command = File::read(Path::new(&file)).unwrap().set_defaults(command()).unwrap();
            assert!(command.get_matches_from(["kvtide"]).get_flag(argument.get_id().as_str()), "{name}");
            continue;
        }
        let taken = VALUES.iter().filter_map(|value| {
            let file = folder.write("file.toml", format!("[{section}]\n{name} = {value}\n"));
            let command = File::read(Path::new(&file)).unwrap().set_defaults(command()).ok()?;
            Some((value.trim_matches(['[', ']', '"']), command))
        });
        let taken: Vec<_> = taken.take(2).collect();
        let [(in_file, with_file), (given, _)] = taken.try_into().expect(name);
        let read = |command: &Command, flags: &[String]| {
            let matches = command.clone().get_matches_from([&["kvtide".to_owned()], flags].concat());
            let values = matches.get_raw(argument.get_id().as_str()).unwrap();
            values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>().join(",")
        };
        assert_eq!(read(&with_file, &[]), in_file, "{name}");
        let flag = format!("--{}={given}", argument.get_long().unwrap());
        assert_eq!(read(&with_file, &[flag]), given, "{name}");
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn every_variable_is_named_after_its_flag() {
    let mut seen = 0;
    for argument in command().get_arguments().filter(|argument| argument.get_id() != "help") {
        let flag = argument.get_long().unwrap().to_uppercase().replace('-', "_");
        assert_eq!(argument.get_env().unwrap().to_str(), Some(format!("KVTIDE_{flag}").as_str()));
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn the_environment_goes_before_the_file_and_behind_flags() {
    let folder = Folder::new();
    let file = folder.write("kvtide.toml", "[server]\nlisten = \"127.0.0.1:0\"\n[limits]\nranks = 0\n");
    let open = [("KVTIDE_LISTEN", "0.0.0.0:0"), ("KVTIDE_CONFIG", file.as_str())];
    // What the file says is looked at all the same.
    kvtide_in(&open, &["serve"]).failed(1, &["kvtide.toml: line 4: [limits] ranks", "0 is not in 1..=65536"]);
    folder.write("kvtide.toml", "[server]\nlisten = \"127.0.0.1:0\"\n");
    kvtide_in(&open, &["serve"]).failed(1, &["cannot listen on 0.0.0.0:0"]);
    kvtide_in(&open, &["serve", "--listen", "192.0.2.1:0"]).failed(1, &["cannot listen on 192.0.2.1:0"]);
    kvtide_in(&[("KVTIDE_RANKS", "0")], &["serve"]).failed(2, &["--ranks", "0 is not in 1..=65536"]);
    kvtide_in(&[("KVTIDE_INSECURE", "perhaps")], &["serve"]).failed(2, &["--insecure", "perhaps"]);
}
