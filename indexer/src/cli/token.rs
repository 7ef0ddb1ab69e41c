//! `kvtide token new`: a fresh access token, and the line that makes it known.

use std::{
    collections::BTreeSet,
    io::{Write, stdout},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use kvtide::access::{NewToken, Role};

use kvtide::serving::Failure;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a token, and print it with the line for the file that `kvtide serve --tokens` reads.
    New {
        /// What it may be used for.
        #[arg(long, value_name = "ROLES", value_delimiter = ',', required = true)]
        roles: Vec<Role>,
        /// The tenants whose blocks it shows; * for all. Without any, it shows blocks of no tenant.
        #[arg(long, value_name = "TENANTS", value_delimiter = ',')]
        tenants: Vec<String>,
        /// Print them as JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Action::New { roles, tenants, json } = arguments.action;
    let (roles, tenants) = (roles.into_iter().collect(), tenants.into_iter().collect::<BTreeSet<_>>());
    let new = NewToken::new(roles, tenants).map_err(|expected| format!("expected {expected}"))?;
    let mut out = stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&new)?)?;
    } else {
        writeln!(out, "token, to be sent as Authorization: Bearer, and shown only here:\n{}\n", new.token)?;
        writeln!(out, "line for the file of --tokens:\n{}", new.line)?;
    }
    Ok(ExitCode::SUCCESS)
}
