//! Access to the diagnostics of the program.

use std::sync::Arc;

use glowplug_controller::metrics::Metrics;
use glowplug_controller::program::probes::Diagnostics;
use glowplug_controller::serve::{Limits, Phase, serve};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::Cluster;
use crate::support::http::get;
use crate::support::server::TOKEN;

pub async fn metrics_need_the_token_of_a_user_with_the_right_to_read_them(cluster: &Cluster) {
    let (phase, phases) = watch::channel(Phase::Serving);
    let (_ready, is_ready) = watch::channel(true);
    let metrics = Arc::new(Metrics::default());
    let diagnostics = Diagnostics::probes(phases.clone(), is_ready).with_metrics(metrics, Some(cluster.controller()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve(
        listener,
        None,
        Limits::DIAGNOSTICS,
        move |request| diagnostics.clone().answer(request),
        phases,
    ));

    assert_eq!(get(address, "/metrics", None).await.0, 401);
    for _ in 0..2 {
        assert_eq!(get(address, "/metrics", Some("another-token")).await.0, 401);
    }
    let (code, text) = get(address, "/metrics", Some(TOKEN)).await;
    assert_eq!((code.as_u16(), text.contains("glowplug_leading 0")), (200, true), "{text}");
    assert_eq!(get(address, "/healthz", None).await.0, 200);

    phase.send_replace(Phase::Closing);
    server.await.unwrap();
}
