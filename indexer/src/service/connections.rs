//! Connections: so many at once, each for as long as it does not dawdle, until the service stops.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use super::{
    ServiceLimits,
    threads::{Answers, Threads},
    tls::Tls,
};
use crate::watched::Watched;

/// How long a stop waits for requests that are under way.
const GRACE: Duration = Duration::from_secs(3);
/// Before another connection is tried to be accepted, where the system has none to give.
const EXHAUSTED: Duration = Duration::from_millis(200);

/// What every connection is served with.
#[derive(Clone)]
pub(super) struct Connections {
    pub(super) router: Router,
    pub(super) limits: ServiceLimits,
    pub(super) tls: Option<Arc<Watched<Tls>>>,
}

impl Connections {
    /// Serves until `stop` is ready, then finishes the requests that are under way, or gives up on those that take too long.
    ///
    /// # Errors
    /// Whatever the system says where it has no threads to give.
    pub(super) async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let threads = Threads::start()?;
        let graceful = GracefulShutdown::new();
        let room = Arc::new(Semaphore::new(self.limits.connections.min(Semaphore::MAX_PERMITS)));
        tokio::select! {
            () = stop => {}
            () = self.accept_all(&listener, &threads, &room, &graceful) => {}
        }
        // Whoever connects from here on is refused.
        drop(listener);
        if timeout(GRACE, graceful.shutdown()).await.is_err() {
            warn!("gave up on requests that were still under way after {GRACE:?}");
        }
        Ok(())
    }

    async fn accept_all(
        &self,
        listener: &TcpListener,
        threads: &Threads,
        room: &Arc<Semaphore>,
        graceful: &GracefulShutdown,
    ) {
        for thread in threads.turns() {
            // Nobody closes it, so that there is room some time.
            let Ok(place) = Arc::clone(room).acquire_owned().await else { return };
            let stream = accept(listener).await.into_std();
            let (connections, watcher) = (self.clone(), graceful.watcher());
            thread.spawn(|answers| async move {
                match stream.and_then(TcpStream::from_std) {
                    Ok(stream) => connections.serve_one(stream, watcher, &answers).await,
                    Err(error) => warn!(%error, "a connection is dropped"),
                }
                drop(place);
            });
        }
    }

    async fn serve_one(self, stream: TcpStream, watcher: Watcher, answers: &Answers) {
        // A client that does not read its answer is given up by the system.
        let patience = SockRef::from(&stream).set_tcp_user_timeout(Some(self.limits.request));
        if let Err(error) = stream.set_nodelay(true).and(patience) {
            debug!(%error, "a connection that has ended already");
        }
        let Some(tls) = self.tls.as_ref().map(|tls| TlsAcceptor::from(Arc::clone(&tls.now().0))) else {
            return self.speak(stream, watcher, answers).await;
        };
        match timeout(self.limits.request, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.speak(stream, watcher, answers).await,
            Ok(Err(error)) => debug!(%error, "a connection without TLS, or with another one"),
            Err(_) => debug!("a connection that did not finish its TLS handshake in time"),
        }
    }

    async fn speak<S>(self, stream: S, watcher: Watcher, answers: &Answers)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.limits.idle);
        let router = TowerToHyperService::new(self.router);
        let service = service_fn(|request: Request<Incoming>| {
            let answer = router.call(request);
            async move {
                let answer = answer.await;
                answers.note();
                answer
            }
        });
        let connection = http.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            debug!(%error, "a connection ended early");
        }
    }
}

/// The next connection, however long that takes.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                warn!(%error, "no connection can be accepted for now");
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
