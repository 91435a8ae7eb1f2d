"""Network checks between workers: reachability, throughput, packet loss, and which worker or link is at fault."""
