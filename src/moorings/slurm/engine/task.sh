# One task of a run, after the lines that set: _moorings_attempt (its folder), _moorings_program, _moorings_plain (empty:
# the job has IPUs), _moorings_terminal (the program of the first task's terminal; empty: it has none). The arguments: how
# many times Slurm has restarted the job, and the Python for the programs. Our names have a prefix, so that they collide
# with none of the job's variables.
#
# Its files: began.<restart> (of the first task to begin), tasks/<rank> (the exit code), tasks/<rank>.why (a sentence,
# if the command could not be started). Only shell builtins are used: PATH is the job's, or missing.
_moorings_umask=$(umask)
_moorings_restart=$1 _moorings_python=$2
_moorings_mine=$_moorings_attempt/tasks/$SLURM_PROCID
umask 077
_moorings_log=$_moorings_attempt/logs/$SLURM_PROCID.log
exec 2> /dev/null # a shell prints "Terminated" there

_moorings_end() { # exit code
    echo "$1" > "$_moorings_mine"
    exit "$1"
}

_moorings_refuse() { # exit code, sentence
    printf '%s\n' "$2" > "$_moorings_mine.why"
    _moorings_end "$1"
}

# On each node one program waits for the script's word to warn: a signal of Slurm's kills those that do not handle it.
if [ "$SLURM_LOCALID" = 0 ]; then
    "$_moorings_python" "$_moorings_program" hear "$_moorings_attempt" "$_moorings_restart" \
        < /dev/null > /dev/null 2>> "$_moorings_attempt/looks.log" &
fi
if [ -n "$_moorings_plain" ]; then # else they come with the partition
    export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID" WORLD_SIZE="$SLURM_STEP_NUM_TASKS"
    # The script, and with it srun, is on the node of the first task.
    export MASTER_ADDR="$SLURM_LAUNCH_NODE_IPADDR" MASTER_PORT="$((20000 + SLURM_JOB_ID % 10000))"
    export MOORINGS_PARTITION_ID='' MOORINGS_DEVICES=''
fi
. "$_moorings_attempt/environment" # exports the job's variables; the command becomes our arguments
[ ! -e "$_moorings_attempt/resume.$_moorings_restart" ] || . "$_moorings_attempt/resume.$_moorings_restart"
cd "$_moorings_workdir" 2> /dev/null ||
    _moorings_refuse 126 "its working folder $_moorings_workdir cannot be entered"
if ! command -v "$1" > /dev/null; then
    [ "${1#*/}" = "$1" ] || [ ! -e "$1" ] || _moorings_refuse 126 "$1 cannot be started: it is not executable"
    _moorings_refuse 127 "$1 was not found"
fi
if [ -n "$_moorings_terminal" ] && [ "$SLURM_PROCID" = 0 ]; then
    "$_moorings_python" -I "$_moorings_terminal" check || _moorings_refuse 126 "a terminal needs Python 3.11, and node \
$SLURMD_NODENAME has none called $_moorings_python: name one with python in [slurm] of the controller's settings"
    export MOORINGS_TERMINAL="$_moorings_attempt/terminal.$_moorings_restart"
    set -- "$_moorings_python" -I "$_moorings_terminal" serve "$_moorings_attempt" "$_moorings_restart" "$@"
fi
[ -e "$_moorings_attempt/began.$_moorings_restart" ] || echo > "$_moorings_attempt/began.$_moorings_restart"
# Signals are for the command; this shell handles them when the command has ended, and records how it ended.
trap : HUP INT QUIT USR1 USR2 PIPE ALRM TERM TSTP TTIN TTOU XCPU VTALRM PROF WINCH
(
    umask "$_moorings_umask"
    exec "$@"
) >> "$_moorings_log" 2>&1
_moorings_end "$?"
