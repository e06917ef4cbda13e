//! Runs one scenario: interop SCENARIO NAMESRV NAME. The scenarios are described in ../README.md.
#![recursion_limit = "512"]

mod admin;
mod asking;
mod consuming;
mod load;
mod scene;
mod sending;
mod special;

use rocketmq_client_rust::{ClientRuntime, ClientRuntimeConfig};
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use serde_json::json;

use load::Kind;
use scene::{event, Outcome, Scene};

async fn run(scenario: &str, namesrv: &str, topic: &str) -> Outcome {
    // Each message that is being consumed has a place in the queue of this lane; on a small machine the default is so
    // short that messages are given back to the broker when many come at once.
    let mut config = RuntimeConfig::default();
    config.blocking_lane_policies.metadata_io.max_queue_depth = 10_000;
    let owner = RuntimeOwner::plan(config)?.build()?;
    let telemetry = rocketmq_observability::install_global(&Default::default())?;
    let runtime = ClientRuntime::try_new(
        owner.root_context().component("client"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )?;
    let scene =
        Scene { runtime, namesrv: namesrv.into(), topic: topic.into(), group: format!("{topic}-group"), traced: false };
    let outcome = match scenario {
        "send" => Box::pin(sending::send(&scene)).await,
        "push" => Box::pin(consuming::push(&scene)).await,
        "broadcast" => Box::pin(consuming::broadcast(&scene)).await,
        "orderly" => Box::pin(consuming::orderly(&scene)).await,
        "tags" => Box::pin(consuming::tags(&scene)).await,
        "sql" => Box::pin(consuming::sql(&scene)).await,
        "start" => Box::pin(consuming::start(&scene)).await,
        "retry" => Box::pin(consuming::retry(&scene, false)).await,
        "retry-orderly" => Box::pin(consuming::retry(&scene, true)).await,
        "reset" => Box::pin(consuming::reset(&scene)).await,
        "pull" => Box::pin(asking::pull(&scene)).await,
        "lite-pull" => Box::pin(asking::lite_pull(&scene)).await,
        "lookup" => Box::pin(asking::lookup(&scene)).await,
        "admin" => Box::pin(admin::calls(&scene)).await,
        "delays" => Box::pin(special::delays(&scene)).await,
        "timers" => Box::pin(special::timers(&scene)).await,
        "recall" => Box::pin(special::recall(&scene)).await,
        "transactions" => Box::pin(special::transactions(&scene)).await,
        "pop" => Box::pin(special::pop(&scene)).await,
        "request-reply" => Box::pin(special::request_reply(&scene)).await,
        "trace" => Box::pin(special::trace(&scene)).await,
        "load" => Box::pin(load::load(&scene, Kind::Plain)).await,
        "load-orderly" => Box::pin(load::load(&scene, Kind::Ordered)).await,
        "load-delays" => Box::pin(load::load(&scene, Kind::Delays)).await,
        "load-timers" => Box::pin(load::load(&scene, Kind::Timers)).await,
        "load-transactions" => Box::pin(load::load(&scene, Kind::Transactions)).await,
        "load-pop" => Box::pin(load::load(&scene, Kind::Pop)).await,
        "load-requests" => Box::pin(load::load(&scene, Kind::Requests)).await,
        "load-trace" => Box::pin(load::load(&special::traced(&scene), Kind::Plain)).await,
        _ => Err(format!("{scenario} is not among the scenarios").into()),
    };
    if let Err(error) = outcome {
        event("failed", json!({"why": error.to_string()}));
        std::process::exit(1);
    }
    event("done", json!({}));
    std::process::exit(0);
}

#[tokio::main]
async fn main() -> Outcome {
    event("client", json!({"version": "rocketmq-client-rust 1.0.0", "runtime": "Rust"}));
    let arguments: Vec<String> = std::env::args().collect();
    run(&arguments[1], &arguments[2], &arguments[3]).await
}
