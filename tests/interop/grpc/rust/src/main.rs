//! Runs one scenario with RocketMQ's gRPC client: interop-grpc SCENARIO ADDRESS NAME. See ../../README.md.

mod scenarios;
mod scene;

use serde_json::json;

use scene::{event, Outcome, Scene};

async fn run(scenario: &str, scene: &Scene) -> Outcome {
    match scenario {
        "grpc-send" => scenarios::send(scene).await,
        "grpc-fifo" => scenarios::fifo(scene).await,
        "grpc-filter" => scenarios::filter(scene).await,
        "grpc-delay" => scenarios::delay(scene).await,
        "grpc-transactions" => scenarios::transactions(scene).await,
        "grpc-load" => scenarios::load(scene).await,
        _ => Err(format!("{scenario} is not among the scenarios").into()),
    }
}

#[tokio::main]
async fn main() {
    event("client", json!({"version": "rocketmq 5.0.0", "runtime": "Rust"}));
    let arguments: Vec<String> = std::env::args().collect();
    if let Err(error) = run(&arguments[1], &Scene::new(&arguments[2], &arguments[3])).await {
        eprintln!("{error:?}");
        event("failed", json!({"why": error.to_string()}));
        std::process::exit(1);
    }
    event("done", json!({}));
    std::process::exit(0);
}
