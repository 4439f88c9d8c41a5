//! Which server certificates are good enough, after the `mysql` client's ssl-mode.

use mysql_async::{ClientIdentity, Error as DriverFailure, IoError, SslOpts, TlsError};
use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::address::{Address, SslMode};
use crate::error::{Code, Error, Result};

/// Reads the certificate files, so that a wrong path is known before the first connection.
pub(super) fn check(address: &Address) -> Result<()> {
    let files = address.ssl_ca.iter().map(|path| ("ssl-ca", path)).chain(address.client.iter().map(|(cert, _)| ("ssl-cert", cert)));
    for (parameter, path) in files {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
        let failed = |why: String| Error::new(Code::Tls, format!("{parameter} {}: {why}", path.display()));
        if read.map_err(|e| failed(e.to_string()))?.is_empty() {
            return Err(failed("no certificate in PEM form".into()));
        }
    }
    Ok(())
}

/// None: no TLS. A unix socket needs none.
pub(super) fn options(address: &Address) -> Option<SslOpts> {
    if address.ssl_mode == SslMode::Disabled || address.socket.is_some() {
        return None;
    }
    let identity = address.client.clone().map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
    let ca = address.ssl_ca.clone();
    Some(
        SslOpts::default()
            // A private authority takes the place of the public ones.
            .with_disable_built_in_roots(ca.is_some())
            .with_root_certs(ca.into_iter().map(Into::into).collect())
            .with_danger_accept_invalid_certs(address.ssl_mode < SslMode::VerifyCa)
            .with_client_identity(identity),
    )
}

/// The TLS library's error inside the driver's, if there is one.
pub(super) fn error_in(err: &DriverFailure) -> Option<&rustls::Error> {
    match err {
        DriverFailure::Io(IoError::Tls(TlsError::Tls(e))) => Some(e),
        DriverFailure::Io(IoError::Io(e)) => e.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// VERIFY_CA asks for a certificate of a known authority, whatever name it is for: then by a name that it holds.
pub(super) fn by_name_in(err: &DriverFailure, address: &Address, tried: Option<&SslOpts>) -> Option<SslOpts> {
    let tried = tried.filter(|ssl| address.ssl_mode == SslMode::VerifyCa && ssl.tls_hostname_override().is_none())?;
    let Some(rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })) = error_in(err) else { return None };
    // As the library writes them: DnsName("db.example").
    let name = presented.first()?.split('"').nth(1)?.replace('*', "any");
    Some(tried.clone().with_danger_tls_hostname_override(Some(name)))
}

/// Why a handshake failed, in words that say what to look at.
pub(super) fn explain(error: &rustls::Error, address: &Address) -> String {
    let rustls::Error::InvalidCertificate(problem) = error else { return error.to_string() };
    match problem {
        CertificateError::UnknownIssuer => {
            let authorities = address.ssl_ca.as_ref().map_or("the public ones".to_owned(), |path| format!("those in {}", path.display()));
            format!("the server's certificate is signed by an authority that is not among {authorities}; set ssl-ca")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the server's certificate is not for {} ({error}); connect by a name that it holds, or use ssl-mode=VERIFY_CA", address.host)
        }
        _ => error.to_string(),
    }
}
