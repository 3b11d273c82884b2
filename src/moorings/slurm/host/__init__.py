"""The part beside slurmctld, and its protocol with the nodes: vipu.conf, install, doctor, agent."""
