//! Names, on each store.

use crate::redis::{Site, on_each_store};

on_each_store!(odd_names_do_not_block_each_other, bad_names_are_usage_errors);

fn odd_names_do_not_block_each_other(at: &Site) {
    let long = "x".repeat(255);
    let names = ["a/b", "a_b", "a%2Fb", "..", "*", "{}", "日本語", "a", "A", &long];
    for name in names {
        assert_eq!(at.code(&["acquire", &format!("--resource={name}")]), 0, "{name:?}");
        assert_eq!(at.code(&["acquire", &format!("--resource={name}")]), 75, "{name:?}");
    }
    let json: serde_json::Value = serde_json::from_slice(&at.run(&["list", "--json"]).stdout).unwrap();
    assert_eq!(json.as_array().unwrap().len(), names.len());
}

fn bad_names_are_usage_errors(at: &Site) {
    for name in ["", "a\nb", "a\u{1b}b", &"x".repeat(256)] {
        assert_eq!(at.code(&["run", &format!("--resource={name}"), "--", "true"]), 64, "{name:?}");
    }
}
