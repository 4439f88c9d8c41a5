//! Which server certificates are good enough, after libpq's sslmode.
//!
//! Two limits of the TLS library, both seen in old setups only: a certificate needs X.509 version 3, and verify-full
//! takes the host name from subjectAltName, not from the common name.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::{RootCert, SslMode, TlsOptions};
use crate::error::{Code, Error, Result};

/// The TLS side of every connection to one address. Reads the certificate files.
pub(super) fn connector(options: &TlsOptions) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        Verifier { roots: roots(options)?, host_name: options.mode == SslMode::VerifyFull, algorithms: provider.signature_verification_algorithms };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(|e| failed(e.to_string()))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match options.client.as_ref().filter(|_| options.mode != SslMode::Disable) {
        Some((cert, key)) => builder
            .with_client_auth_cert(certificates("sslcert", cert)?, private_key(key)?)
            .map_err(|e| failed(format!("sslcert {} and sslkey {} don't work together: {e}", cert.display(), key.display())))?,
        None => builder.with_no_client_auth(),
    };
    config.enable_sni = options.server_name_indication;
    if options.direct {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(MakeRustlsConnect::new(config))
}

fn failed(message: impl Into<String>) -> Error {
    Error::new(Code::Tls, message)
}

/// Whose certificates are believed; None: anybody's.
fn roots(options: &TlsOptions) -> Result<Option<Roots>> {
    const WAYS: &str = "set sslrootcert (or PGSSLROOTCERT) to the file with the certificate of the authority that signed the server's, \
                        or to \"system\" for those of the operating system";
    match (&options.root, options.mode) {
        // As in libpq: without a certificate to compare with, `require` only encrypts.
        (_, SslMode::Disable | SslMode::Allow | SslMode::Prefer) | (None, SslMode::Require) => Ok(None),
        (None, SslMode::VerifyCa | SslMode::VerifyFull) => {
            Err(failed(format!("nothing to verify the server's certificate with: ~/.postgresql/root.crt is not there; {WAYS}")))
        }
        (Some(RootCert::System), _) => {
            let found = rustls_native_certs::load_native_certs();
            let why = found.errors.first().map(|e| format!(": {e}")).unwrap_or_default();
            Roots::new(found.certs).map(Some).ok_or_else(|| failed(format!("the operating system has no root certificates{why}")))
        }
        (Some(RootCert::File(path)), _) => {
            let found = certificates("sslrootcert", path).map_err(|e| failed(format!("{e}; {WAYS}")))?;
            Roots::new(found).map(Some).ok_or_else(|| failed(format!("sslrootcert {} holds no certificate that can be used; {WAYS}", path.display())))
        }
    }
}

fn certificates(parameter: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let found = read.map_err(|e| failed(format!("{parameter} {} can't be read: {}", path.display(), pem_reason(&e))))?;
    if found.is_empty() {
        return Err(failed(format!("{parameter} {} holds no certificate in PEM form", path.display())));
    }
    Ok(found)
}

/// The client's key, if nobody else may read it: libpq's rule, 0600, or 0640 when root owns it.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(path).map_err(|e| failed(format!("sslkey {} can't be read: {e}", path.display())))?;
        let forbidden = if meta.uid() == 0 { 0o037 } else { 0o077 };
        if meta.mode() & forbidden != 0 {
            return Err(failed(format!("sslkey {0} was not used: others may read it; run chmod 0600 {0}", path.display())));
        }
    }
    PrivateKeyDer::from_pem_file(path)
        .map_err(|e| failed(format!("sslkey {} can't be read: {} (an encrypted key is not supported)", path.display(), pem_reason(&e))))
}

fn pem_reason(e: &rustls::pki_types::pem::Error) -> String {
    match e {
        rustls::pki_types::pem::Error::Io(e) => e.to_string(),
        e => e.to_string(),
    }
}

#[derive(Debug)]
struct Roots {
    store: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Roots {
    /// None if there is nothing that can be used.
    fn new(certificates: Vec<CertificateDer<'static>>) -> Option<Roots> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(certificates.iter().cloned());
        (!store.is_empty()).then_some(Roots { store, certificates })
    }
}

/// Believes as much as sslmode says. The signature of the handshake is verified always: without it, the certificate
/// would not even belong to the one at the other end.
#[derive(Debug)]
struct Verifier {
    /// None: any certificate will do.
    roots: Option<Roots>,
    host_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        match rustls::client::verify_server_cert_signed_by_trust_anchor(&certificate, &roots.store, intermediates, now, self.algorithms.all) {
            Ok(()) => {}
            // A self-signed server certificate that is its own root, as PostgreSQL's manual makes them with `openssl req -x509`.
            // It says that it is an authority; webpki refuses that only after it has checked the dates. The file names
            // this very certificate, so it is believed.
            Err(e) if is_authority(&e) && roots.certificates.iter().any(|root| root == end_entity) => {}
            Err(e) => return Err(e),
        }
        if self.host_name {
            rustls::client::verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn is_authority(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref::<webpki::Error>(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Why a handshake failed, in words that say what to look at.
pub(super) fn explain(error: &rustls::Error, options: &TlsOptions, host: &str) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            let root = match &options.root {
                Some(RootCert::File(path)) => path.display().to_string(),
                Some(RootCert::System) | None => "the operating system's".to_owned(),
            };
            format!("the server's certificate is signed by an authority that sslrootcert ({root}) doesn't hold")
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => {
            format!("the server's certificate is not for {host} ({error}); connect by a name that it holds, or use sslmode=verify-ca")
        }
        rustls::Error::AlertReceived(alert) => {
            format!("the server ended the handshake ({alert:?}); if it asks for a client certificate, check sslcert and sslkey")
        }
        error => error.to_string(),
    }
}
