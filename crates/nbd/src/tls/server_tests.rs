//! Files that change while a server has them. The certificates are made here; other programs see theirs in tests/interop/nbd-tls.sh.

use std::fs;
use std::path::Path;

use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509, X509NameBuilder};
use tempfile::TempDir;

use super::*;

/// A certificate that signs itself, and its key, in PEM format.
fn certificate(name: &str) -> (Vec<u8>, Vec<u8>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut of = X509NameBuilder::new().unwrap();
    of.append_entry_by_text("CN", name).unwrap();
    let of = of.build();
    let mut made = X509::builder().unwrap();
    let number = BigNum::from_u32(1).unwrap().to_asn1_integer().unwrap();
    made.set_serial_number(&number).unwrap();
    made.set_subject_name(&of).unwrap();
    made.set_issuer_name(&of).unwrap();
    made.set_pubkey(&key).unwrap();
    made.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    made.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    made.sign(&key, MessageDigest::sha256()).unwrap();
    (made.build().to_pem().unwrap(), key.private_key_to_pem_pkcs8().unwrap())
}

/// Puts a file in the place of another one, as programs do that renew certificates.
fn replace(directory: &Path, name: &str, contents: &[u8]) {
    let new = directory.join("new");
    fs::write(&new, contents).unwrap();
    fs::rename(new, directory.join(name)).unwrap();
}

fn replace_both(directory: &Path, (certificate, key): &(Vec<u8>, Vec<u8>)) {
    replace(directory, "server-cert.pem", certificate);
    replace(directory, "server-key.pem", key);
}

/// The certificate that a new session shows.
fn shown(server: &ServerTls) -> Vec<u8> {
    server.session().unwrap().certificate().unwrap().to_pem().unwrap()
}

fn of_directory(folder: &TempDir, verify_peer: bool) -> ServerTls {
    ServerTls::load(&Credentials::Directory(folder.path().into()), verify_peer).unwrap()
}

#[test]
fn a_renewed_certificate_is_for_new_sessions() {
    let (folder, [old, new]) = (TempDir::new().unwrap(), ["old", "new"].map(certificate));
    replace_both(folder.path(), &old);
    let server = of_directory(&folder, false);
    let begun = server.session().unwrap();
    server.renew();
    assert_eq!(shown(&server), old.0);
    replace_both(folder.path(), &new);
    assert_eq!(shown(&server), old.0, "read without a look at the files");
    server.renew();
    assert_eq!(shown(&server), new.0);
    assert_eq!(begun.certificate().unwrap().to_pem().unwrap(), old.0);
    // Written in place, and shared by all that have it.
    fs::write(folder.path().join("server-key.pem"), &old.1).unwrap();
    fs::write(folder.path().join("server-cert.pem"), &old.0).unwrap();
    server.clone().renew();
    assert_eq!(shown(&server), old.0);
}

#[test]
fn what_cannot_be_used_leaves_the_former_certificate_in_force_until_it_is_put_right() {
    let (folder, [old, new]) = (TempDir::new().unwrap(), ["old", "new"].map(certificate));
    let path = folder.path();
    replace_both(path, &old);
    let server = of_directory(&folder, false);
    let is_refused = |why: &str| {
        for _ in 0..2 {
            server.renew();
            assert_eq!(shown(&server), old.0, "{why}");
        }
        let Inner { seen, source, .. } = &*server.0;
        assert!(seen.lock().unwrap().refused == Some(source.stamps()), "{why}: not noticed");
    };
    replace(path, "server-cert.pem", &new.0);
    is_refused("the key is that of the former one");
    replace(path, "server-cert.pem", b"-----BEGIN CERTIFICATE-----\n");
    is_refused("half a certificate");
    replace(path, "server-cert.pem", b"");
    is_refused("an empty file");
    fs::remove_file(path.join("server-cert.pem")).unwrap();
    is_refused("no file");
    // Clients would prove themselves in another way, or not at all.
    fs::write(path.join("keys.psk"), "alice:00\n").unwrap();
    is_refused("keys");
    replace_both(path, &new);
    server.renew();
    assert_eq!(shown(&server), new.0);
}

#[test]
fn keys_stay_keys() {
    let (folder, new) = (TempDir::new().unwrap(), certificate("new"));
    fs::write(folder.path().join("keys.psk"), "alice:00\n").unwrap();
    let server = of_directory(&folder, false);
    replace_both(folder.path(), &new);
    server.renew();
    assert!(server.proves_clients() && server.session().unwrap().certificate().is_none());
    // With a certificate in the directory it is the certificate's for a server that starts now.
    assert!(!of_directory(&folder, false).proves_clients());
}

#[test]
fn a_list_of_revoked_certificates_does_not_disappear() {
    let (folder, old) = (TempDir::new().unwrap(), certificate("old"));
    replace_both(folder.path(), &old);
    replace(folder.path(), "ca-cert.pem", &old.0);
    let server = of_directory(&folder, true);
    let used = |named: bool| {
        let mut stamps = server.0.source.stamps();
        assert_eq!(stamps.0.len(), 4);
        if !named {
            stamps.0[3] = None;
        }
        stamps
    };
    fs::write(folder.path().join("ca-crl.pem"), "a list").unwrap();
    let (with, without) = (used(true), used(false));
    let lost = server.0.source.reload(&with, &without);
    assert!(matches!(lost, Err(TlsError::Gone(path)) if path.ends_with("ca-crl.pem")));
}

#[test]
fn links_to_other_places_are_named() {
    let (folder, old) = (TempDir::new().unwrap(), certificate("old"));
    let [place, other] = ["place", "other"].map(|name| folder.path().join(name));
    for path in [&place, &other] {
        fs::create_dir(path).unwrap();
    }
    replace_both(&place, &old);
    let server = ServerTls::load(&Credentials::Directory(place.clone()), false).unwrap();
    assert_eq!((server.place(), server.leads_away()), (&*place, None));
    fs::rename(place.join("server-key.pem"), other.join("key")).unwrap();
    std::os::unix::fs::symlink("../other/key", place.join("server-key.pem")).unwrap();
    assert_eq!(server.leads_away(), Some(place.join("server-key.pem")));
}
