//! `ops`: every primitive.

use serde_json::json;
use warpwright_ops::catalogue;

use crate::args::OpsArgs;
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::table::Align;

/// Runs the command.
///
/// # Errors
/// Standard output is gone.
pub fn run(args: &OpsArgs, console: &mut Console) -> Result<Outcome, Error> {
    let entries = catalogue();
    if args.json.json {
        let list: Vec<_> = entries
            .iter()
            .map(|entry| {
                json!({
                    "op": entry.op,
                    "also": entry.aliases().collect::<Vec<_>>(),
                    "direction": entry.direction.name(),
                    "dtypes": entry.dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>(),
                    "targets": entry.targets.iter().map(ToString::to_string).collect::<Vec<_>>(),
                })
            })
            .collect();
        console.json(&list.into())?;
        return Ok(Outcome::Clean);
    }
    let columns =
        [("op", Align::Left), ("direction", Align::Left), ("dtypes", Align::Left), ("targets", Align::Left)];
    let mut table = console.table(&columns);
    for entry in &entries {
        let dtypes: Vec<_> = entry.dtypes.iter().map(|dtype| dtype.name()).collect();
        let targets: Vec<_> = entry.targets.iter().map(ToString::to_string).collect();
        table.row([
            std::iter::once(entry.op).chain(entry.aliases()).collect::<Vec<_>>().join(", "),
            entry.direction.name().to_owned(),
            dtypes.join(" "),
            targets.join(" "),
        ]);
    }
    console.line(table)?;
    Ok(Outcome::Clean)
}
