# Stands for work elsewhere. The first line of input sets its end: 0 is COMPLETED, anything else FAILED. The end of the
# input is also FAILED, because then the client has died. It reports signals to the client; the client ends the work,
# and then this script. Two weaknesses of shells: a signal may cut a line in two and lose the part before it, so the line
# comes twice; and a signal just before a blocking read is handled after it, so an empty line comes now and then.
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
