# Stands for work that runs elsewhere. It ends as its first line of input says: 0 is COMPLETED, anything else FAILED; so
# is the end of the input, for then the client has died. Signals are told to the client, which ends the work, and with
# it this. Two weaknesses of shells: a signal may cut a line in two, and the part before it be lost, so the line comes
# twice; and one that comes just before a read blocks is handled after it, so now and then an empty line comes.
tell() {
    told=1
    echo "moorings:$1"
}
trap 'tell HUP' HUP
trap 'tell INT' INT
trap 'tell QUIT' QUIT
trap 'tell USR1' USR1
trap 'tell USR2' USR2
trap 'tell TERM' TERM
echo "moorings:begun:$SLURM_STEP_ID"
while :; do
    told=
    if read -r word; then
        [ "$word" ] && break
    elif [ ! "$told" ]; then
        exit 1
    fi
done
[ "$word" = 0 ]
