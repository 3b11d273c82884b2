"""What runs beside slurmctld and what it says to the nodes: vipu.conf, the nodes' protocol, install, doctor, agent."""
