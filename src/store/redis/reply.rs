//! What the scripts answer, read into our own types.

use std::time::Duration;

use redis::Value;

use crate::lock::{Holding, Keeping, Mode, Owner};

/// The text or number at this place.
pub fn word(items: &[Value], at: usize) -> Option<String> {
    match items.get(at)? {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The number at this place.
pub fn number(items: &[Value], at: usize) -> Option<u64> {
    word(items, at)?.parse().ok()
}

/// The list at this place; empty where there is none.
pub fn items(all: &[Value], at: usize) -> &[Value] {
    match all.get(at) {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}

/// An owner from the JSON of a record.
pub fn owner_of(json: Option<String>) -> Owner {
    json.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// How a script names the way a lease is kept.
pub fn keeping(keeping: Keeping) -> &'static str {
    match keeping {
        Keeping::Process => "process",
        Keeping::Lease => "lease",
    }
}

/// How a script names a mode: by its limit.
pub fn limit(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared { limit } => limit.unwrap_or(0).to_string(),
    }
}

/// The mode that a script names by its limit.
pub fn mode(limit: Option<&str>) -> Mode {
    match limit.and_then(|limit| limit.parse().ok()) {
        None => Mode::Exclusive,
        Some(limit) => Mode::Shared { limit: Some(limit).filter(|limit| *limit > 0) },
    }
}

/// The holders in the list at this place: what is left of each lease, and its record if dlock wrote one.
pub fn holders(all: &[Value], at: usize) -> Vec<Holding> {
    let one = |fields: &Value| {
        let Value::Array(fields) = fields else { return None };
        let text = |at| word(fields, at).filter(|text| !text.is_empty());
        Some(Holding {
            owner: text(1).map(|json| owner_of(Some(json))),
            acquired_at_us: number(fields, 2),
            heartbeat_us: number(fields, 3),
            fence: number(fields, 4),
            broken_by: text(5).map(|json| owner_of(Some(json))),
            keeping: text(6).map(|word| if word == keeping(Keeping::Process) { Keeping::Process } else { Keeping::Lease }),
            mode: mode(text(7).as_deref()),
            slot: number(fields, 8).and_then(|slot| u32::try_from(slot).ok()),
            expires_in: Duration::from_millis(number(fields, 0).unwrap_or_default()),
        })
    };
    items(all, at).iter().filter_map(one).collect()
}
