//! URIs.

use ashlar_rbd::{Access, Uri, UriError, is_uri};

use crate::disk_checks::Random;

fn uri(
    [pool, namespace, image]: [&str; 3],
    snapshot: Option<&str>,
    conf: Option<&str>,
    user: &str,
) -> Result<Uri, UriError> {
    Ok(Uri {
        access: Access { conf: conf.map(Into::into), user: user.to_owned() },
        pool: pool.to_owned(),
        namespace: namespace.to_owned(),
        image: image.to_owned(),
        snapshot: snapshot.map(str::to_owned),
    })
}

#[test]
fn uris_say_where_an_image_is() {
    let parameter = |text: &str| Err(UriError::Parameter(text.to_owned()));
    let encoding = |text: &str| Err(UriError::Encoding(text.to_owned()));
    for (text, expected) in [
        ("rbd:rbd/disk", uri(["rbd", "", "disk"], None, None, "admin")),
        ("rbd:p/n/i@s", uri(["p", "n", "i"], Some("s"), None, "admin")),
        ("rbd:p/i@s@t/u", uri(["p", "", "i"], Some("s@t/u"), None, "admin")),
        ("rbd:p/a%2fb%40c", uri(["p", "", "a/b@c"], None, None, "admin")),
        ("rbd:p/i?", uri(["p", "", "i"], None, None, "admin")),
        ("rbd:p/i?id=bob&conf=/a%20b", uri(["p", "", "i"], None, Some("/a b"), "bob")),
        ("rbd:p/i@s?conf=c=d", uri(["p", "", "i"], Some("s"), Some("c=d"), "admin")),
        ("nbd://h", Err(UriError::Scheme)),
        ("rbd:", Err(UriError::Place)),
        ("rbd:i", Err(UriError::Place)),
        ("rbd:/i", Err(UriError::Place)),
        ("rbd:p/", Err(UriError::Place)),
        ("rbd:p//i", Err(UriError::Place)),
        ("rbd:p/n/i/x", Err(UriError::Place)),
        ("rbd:p/i@", Err(UriError::Snapshot)),
        ("rbd:p/i?x", parameter("x")),
        ("rbd:p/i?x=1", parameter("x=1")),
        ("rbd:p/i?id=", parameter("id=")),
        ("rbd:p/i?id=a&id=b", parameter("id=b")),
        ("rbd:p/%", encoding("%")),
        ("rbd:p/%00", encoding("%00")),
        ("rbd:p/i@%ff", encoding("%ff")),
    ] {
        assert_eq!(Uri::parse(text), expected, "{text}");
        assert_eq!(is_uri(text), text != "nbd://h");
    }
}

/// `text` in a URI, with more than needed encoded.
fn encoded(text: &str, random: &mut Random) -> String {
    let encode = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() && random.below(4) > 0 => char::from(byte).to_string(),
        byte => format!("%{byte:02x}"),
    };
    text.bytes().map(encode).collect()
}

#[test]
fn any_name_can_be_written_and_all_ways_to_write_it_are_the_same_image() {
    let mut random = Random(7);
    let name = |random: &mut Random| -> String {
        let letters = ['a', 'Z', '/', '@', '?', '%', '&', '=', ' ', '\u{e9}'];
        (0..=random.below(5)).map(|_| letters[random.below(10) as usize]).collect()
    };
    for _ in 0..500 {
        let names = [name(&mut random), name(&mut random), name(&mut random)];
        let [pool, namespace, image] = &names;
        let (conf, user, snapshot) = (name(&mut random), name(&mut random), name(&mut random));
        let mut write = |conf: &str, user: &str| {
            let mut part = |text: &str| encoded(text, &mut random);
            let [pool, namespace, image] = [part(pool), part(namespace), part(image)];
            let (snapshot, conf, user) = (part(&snapshot), part(conf), part(user));
            format!("rbd:{pool}/{namespace}/{image}@{snapshot}?conf={conf}&id={user}")
        };
        let expected = uri([pool, namespace, image], Some(&snapshot), Some(&conf), &user);
        let parsed = Uri::parse(&write(&conf, &user));
        assert_eq!(parsed, expected);
        let (one, other) = (parsed.unwrap(), Uri::parse(&write(&conf, "other")).unwrap());
        assert_eq!(one.identity(), other.identity());
        let elsewhere = Uri::parse(&write("elsewhere", &user)).unwrap();
        assert!(conf == "elsewhere" || one.identity() != elsewhere.identity());
        let whole = Uri { snapshot: None, ..one.clone() };
        assert_ne!(one.identity(), whole.identity());
    }
}
