# A connection to a port of this node's 127.0.0.1, as a step of a run's job, in bash: its input goes there, what comes back
# is its output. The argument: the port. The listener must be this user's or root's: another user's program may wait there
# for what is meant for the job.
port=$1
printf -v hex %04X "$port"
check_listeners() {
    for table in /proc/net/tcp /proc/net/tcp6; do
        [ -r "$table" ] || continue # a kernel without IPv6
        mapfile -t lines < "$table"
        for line in "${lines[@]}"; do
            [[ $line == *":$hex "* ]] || continue
            read -r _ local _ state _ _ _ uid _ <<< "$line"
            if [ "${local##*:}" = "$hex" ] && [ "$state" = 0A ] && [ "$uid" != 0 ] && [ "$uid" != "$UID" ]; then
                echo "moorings: a process of user $uid listens at port $port of $SLURMD_NODENAME" >&2
                exit 1
            fi
        done
    done
}
check_listeners
{ exec 3<> "/dev/tcp/127.0.0.1/$port"; } 2> /dev/null || {
    echo "moorings: nothing listens at port $port of 127.0.0.1 on $SLURMD_NODENAME" >&2
    exit 1
}
check_listeners # one may have come in between
exec 4<&0
cat <&4 >&3 &
cat <&3 # until the program there closes the connection
kill "$!" 2> /dev/null
