//! Connections: accepted within limits, served, and ended when the server ends.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::app::App;
use super::io::Timed;

/// Serves until a signal comes, then lets what runs come to its end for as long as it may.
pub(super) async fn serve(app: Arc<App>, listener: TcpListener, router: Router) -> io::Result<()> {
    let most = most_connections(&app);
    let connections = Arc::new(Semaphore::new(most));
    let (drain, draining) = watch::channel(false);
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = Server {
        app: Arc::clone(&app),
        router,
        draining,
    };
    tokio::select! {
        () = server.accept(listener, &connections) => {}
        _ = end.recv() => {}
        _ = interrupt.recv() => {}
    }
    app.draining.store(true, Ordering::SeqCst);
    let seconds = app.limits.drain_timeout.as_secs_f64();
    tracing::info!("shutting down: running answers have {seconds} s");
    // With no connection there is nobody to tell.
    let _ = drain.send(true);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    tokio::select! {
        ended = timeout(app.limits.drain_timeout, connections.acquire_many(all)) => {
            if ended.is_err() {
                tracing::warn!("answers that were not complete in time are cut off");
            }
        }
        _ = end.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Serves for as long as it is polled.
pub(super) async fn accept(app: Arc<App>, listener: TcpListener, router: Router) {
    let connections = Arc::new(Semaphore::new(most_connections(&app)));
    let (_never, draining) = watch::channel(false);
    let server = Server {
        app,
        router,
        draining,
    };
    server.accept(listener, &connections).await;
}

fn most_connections(app: &App) -> usize {
    app.limits
        .connections
        .min(Semaphore::MAX_PERMITS)
        .min(u32::MAX as usize)
}

/// What a connection needs.
#[derive(Clone)]
struct Server {
    app: Arc<App>,
    router: Router,
    draining: watch::Receiver<bool>,
}

impl Server {
    async fn accept(&self, listener: TcpListener, connections: &Arc<Semaphore>) {
        loop {
            let Ok(permit) = Arc::clone(connections).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(self.clone().connection(stream, permit));
                }
                Err(error) => {
                    // Out of files, perhaps: those that are open will be closed.
                    tracing::warn!("a connection could not be accepted: {error}");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn connection(mut self, stream: TcpStream, _permit: OwnedSemaphorePermit) {
        let _open = Open::new(&self.app);
        // Text goes out as it comes. Where that cannot be set, it comes a little later.
        let _ = stream.set_nodelay(true);
        let limits = &self.app.limits;
        let io = TokioIo::new(Timed::new(stream, limits.write_timeout));
        let mut connection = http1::Builder::new();
        connection
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(MAX_HEAD)
            .max_header_size(MAX_HEAD)
            .half_close(false);
        let served = connection.serve_connection(io, TowerToHyperService::new(self.router.clone()));
        tokio::pin!(served);
        let draining = async {
            if self.draining.wait_for(|drains| *drains).await.is_err() {
                pending::<()>().await;
            }
        };
        // How a connection ends is its own business.
        tokio::select! {
            _ = served.as_mut() => return,
            () = draining => served.as_mut().graceful_shutdown(),
        }
        let _ = served.await;
    }
}

/// Counts a connection as long as it is open.
struct Open<'a>(&'a App);

impl<'a> Open<'a> {
    fn new(app: &'a App) -> Self {
        app.metrics.connections.fetch_add(1, Ordering::Relaxed);
        Self(app)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes of a request's head.
const MAX_HEAD: usize = 64 << 10;
