//! Flows over links: clients with constant rates first, recoveries share the rest.

/// Copies some bytes over the links with these numbers, as fast as they allow.
pub(super) struct Flow {
    pub(super) links: Vec<usize>,
    pub(super) bytes: f64,
}

/// Takes a constant rate, in bytes per second, of the links with these numbers.
pub(super) struct Stream {
    pub(super) links: Vec<usize>,
    pub(super) rate: f64,
}

/// What the streams take of each of `count` links.
pub(super) fn load(streams: &[Stream], count: usize) -> Vec<f64> {
    let mut load = vec![0.0; count];
    for stream in streams {
        stream.links.iter().for_each(|link| load[*link] += stream.rate);
    }
    load
}

/// What the streams leave of each link.
///
/// This is exact, not an estimate: streams have priority, never ask for more than a link has, and do not depend on the flows. So
/// each gets its rate at any time, and max-min fairness among the flows is max-min fairness on what is left.
pub(super) fn beside(links: &[f64], load: &[f64]) -> Vec<f64> {
    links.iter().zip(load).map(|(link, load)| link - load).collect()
}

/// The rates of the flows that are left, which share each link fairly: the fullest link first gives each of its flows an equal
/// share, then the rest is shared in the same way.
fn fair_rates(flows: &[Flow], left: &[f64], links: &[f64]) -> Vec<f64> {
    let mut rates = vec![0.0; flows.len()];
    let mut open: Vec<usize> = (0..flows.len()).filter(|flow| left[*flow] > 0.0).collect();
    let mut room = links.to_vec();
    while !open.is_empty() {
        let mut users = vec![0_u32; links.len()];
        open.iter().flat_map(|flow| &flows[*flow].links).for_each(|link| users[*link] += 1);
        let used = (0..links.len()).filter(|link| users[*link] > 0);
        let shares = used.map(|link| (room[link] / f64::from(users[link]), link));
        let Some((share, full)) = shares.min_by(|one, other| one.0.total_cmp(&other.0)) else {
            break;
        };
        let (done, rest): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|flow| flows[*flow].links.contains(&full));
        for flow in done {
            rates[flow] = share;
            flows[flow].links.iter().for_each(|link| room[*link] -= share);
        }
        open = rest;
    }
    rates
}

/// When each flow ends, in seconds, if all begin at once.
pub(super) fn ends(flows: &[Flow], links: &[f64]) -> Vec<f64> {
    let mut left: Vec<f64> = flows.iter().map(|flow| flow.bytes).collect();
    let (mut now, mut ends) = (0.0, vec![0.0; flows.len()]);
    while left.iter().any(|bytes| *bytes > 0.0) {
        let rates = fair_rates(flows, &left, links);
        let active = (0..flows.len()).filter(|flow| left[*flow] > 0.0);
        let step = active.clone().map(|flow| left[flow] / rates[flow]).fold(f64::MAX, f64::min);
        now += step;
        for flow in active.collect::<Vec<_>>() {
            left[flow] -= rates[flow] * step;
            // Less than a byte is a rounding error.
            if left[flow] < 1.0 {
                (left[flow], ends[flow]) = (0.0, now);
            }
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() <= other.abs() * 1e-9
    }

    fn flow(links: &[usize], bytes: f64) -> Flow {
        Flow { links: links.to_vec(), bytes }
    }

    #[test]
    fn flows_share_the_fullest_link_and_then_what_is_left() {
        // One alone takes its bytes at the narrowest link's rate; k equal ones through one link, k times as long.
        assert!(near(ends(&[flow(&[0, 1], 100.0)], &[10.0, 4.0])[0], 25.0));
        let equal: Vec<Flow> = (0..7).map(|_| flow(&[0], 100.0)).collect();
        assert!(ends(&equal, &[10.0]).iter().all(|end| near(*end, 70.0)));
        // A narrow flow leaves its share to the other one, which has the link alone in the end.
        let flows = [flow(&[0, 1], 20.0), flow(&[0], 100.0)];
        let ends = ends(&flows, &[10.0, 2.0]);
        assert!(near(ends[0], 10.0) && near(ends[1], 12.0), "{ends:?}");
    }

    #[test]
    fn streams_take_their_rate_of_each_link_and_flows_get_the_rest() {
        let streams =
            [Stream { links: vec![0, 2], rate: 1.0 }, Stream { links: vec![0], rate: 3.0 }];
        let load = load(&streams, 3);
        assert_eq!(load, [4.0, 0.0, 1.0]);
        let left = beside(&[10.0, 8.0, 9.0], &load);
        assert_eq!(left, [6.0, 8.0, 8.0]);
        // Two flows have 3 of the first link each; the shorter one ends, and the other one has 6.
        let ends = ends(&[flow(&[0, 1], 30.0), flow(&[0, 2], 60.0)], &left);
        assert!(near(ends[0], 10.0) && near(ends[1], 15.0), "{ends:?}");
    }

    #[test]
    fn a_stream_with_priority_is_what_fair_shares_give_a_flow_of_the_same_rate() {
        // A client that asks for less than a fair share is held up by nothing, so a flow that a link of its own limits to the
        // client's rate, and that never ends, must leave the others the same rates.
        let links = [10.0, 5.0];
        let flows = [flow(&[0, 1], 1.0), flow(&[0], 1.0), flow(&[0, 2], f64::MAX)];
        let all = fair_rates(&flows, &[1.0; 3], &[links[0], links[1], 2.0]);
        let client = [Stream { links: vec![0], rate: 2.0 }];
        let rest = fair_rates(&flows[..2], &[1.0; 2], &beside(&links, &load(&client, 2)));
        assert_eq!(all[..2], rest);
    }
}
