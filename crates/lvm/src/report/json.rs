//! Reports as JSON.

use super::{Field, Row, Units};

/// A report in LVM's JSON format: all values are strings, and fields appear in the requested order. `name` is that of a row.
pub fn json<R: Row>(name: &str, fields: &[&'static Field<R>], rows: &[R], units: &Units) -> String {
    let row = |row: &R| {
        let pairs = fields.iter().map(|field| {
            let value = serde_json::Value::from(field.show(row, units));
            format!("\"{}\":{value}", field.name)
        });
        format!("                  {{{}}}", pairs.collect::<Vec<_>>().join(", "))
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    let head = format!("  {{\n      \"report\": [\n          {{\n              \"{name}\": [\n");
    let rows = rows.join(",\n");
    let end = if rows.is_empty() { "" } else { "\n" };
    format!("{head}{rows}{end}              ]\n          }}\n      ]\n  }}\n")
}
