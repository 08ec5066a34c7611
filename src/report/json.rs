//! What scripts read: JSON documents with names that stay, times in ISO 8601 and UTC, and no token but
//! for its owner.

use std::time::Duration;

use serde_json::{Value, json};

use super::utc;
use crate::clock::wall_us;
use crate::lock::{Claim, Holding, Keeping, Lease, Mode, Owner, Waiting};
use crate::store::Status;

fn owner_json(owner: &Owner) -> Value {
    json!({"user": owner.user, "host": owner.host, "pid": owner.pid, "program": owner.program, "label": owner.label})
}

/// The name of a mode, and the number of slots that was asked for.
fn mode(mode: Mode) -> (&'static str, Option<u32>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared { limit: None } => ("shared", None),
        Mode::Shared { limit } => ("slot", limit),
    }
}

fn waiting_json((at, waiting): (usize, &Waiting)) -> Value {
    let (mode, slots) = mode(waiting.mode);
    json!({
        "position": at + 1,
        "owner": owner_json(&waiting.owner),
        "mode": mode,
        "slots": slots,
        "waiting_ms": u64::try_from(waiting.waited.as_millis()).unwrap_or(u64::MAX),
    })
}

/// A lease as JSON; no token.
pub fn holding_json(holding: &Holding) -> Value {
    let (mode, slots) = mode(holding.mode);
    json!({
        "owner": holding.owner.as_ref().map(owner_json),
        "mode": mode,
        "slot": holding.slot,
        "slots": slots,
        "kept_by": holding.keeping.map(|keeping| match keeping {
            Keeping::Process => "run",
            Keeping::Lease => "lease",
        }),
        "fencing_token": holding.fence,
        "acquired_at": holding.acquired_at_us.map(utc),
        "heartbeat_at": holding.heartbeat_us.map(utc),
        "expires_in_ms": u64::try_from(holding.expires_in.as_millis()).unwrap_or(u64::MAX),
        "expires_at": utc(wall_us().saturating_add(u64::try_from(holding.expires_in.as_micros()).unwrap_or(0))),
        "broken_by": holding.broken_by.as_ref().map(owner_json),
    })
}

/// `status` as JSON.
pub fn status_json(status: &Status) -> Value {
    json!({
        "resource": status.name.as_str(),
        "held": !status.holders.is_empty(),
        "holders": status.holders.iter().map(holding_json).collect::<Vec<_>>(),
        "waiters": status.waiters.iter().enumerate().map(waiting_json).collect::<Vec<_>>(),
        "last_fencing_token": status.last_fence,
    })
}

/// A lease for its owner as JSON.
pub fn lease_json(lease: &Lease, store: &str) -> String {
    let mut value = renewed_json(&lease.claim, lease.ttl);
    value["token"] = json!(lease.claim.token.as_str());
    value["fencing_token"] = json!(lease.fence);
    value["slot"] = json!(lease.slot);
    value["store"] = json!(store);
    document(&value)
}

/// A renewal as JSON; no token.
pub fn renewed_json(claim: &Claim, ttl: Duration) -> Value {
    let ttl_us = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX);
    json!({
        "resource": claim.name.as_str(),
        "ttl_ms": ttl_us / 1000,
        "expires_at": utc(wall_us().saturating_add(ttl_us)),
    })
}

/// One JSON document and a newline.
pub fn document(value: &Value) -> String {
    format!("{value}\n")
}
