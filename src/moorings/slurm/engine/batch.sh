# The batch script of a run, after the lines that set: attempt (its folder), tasks, cpus, limit, warn, grace (seconds;
# empty: none), limit_signals and yield_signals (names, the first choice first), plain_signal, python, program, watched
# (empty: the job names no folder of checkpoints), reports (empty: the controller sees this folder itself), terminal
# (empty: the first task has none). POSIX shell: without a Python on the node only its checkpoints are not seen, and every
# program gets plain_signal; a terminal needs one.
#
# It claims the attempt and starts the tasks as one step. It stops them for the first reason to come (a task failed, a
# cancel, the time limit, Slurm ends the job) with TERM, the grace period and KILL, and records that reason.
# Everything else about the end is in files of the tasks, or comes from Slurm.
usual=$(umask)
umask 077
cd "$attempt" || exit 1
restart=${SLURM_RESTART_COUNT:-0}
python=$(command -v "$python" || printf '%s' "$python") # the tasks have another PATH
step=$SLURM_JOB_ID.0
stop='' failed='' asked='' over='' slurm='' warn_now='' warned='' killing='' ended='' timers='' watcher='' reporter=''

trap 'failed=1' PROF # not HUP: a shell under a slurmd that was started with nohup cannot trap that
trap 'warn_now=1' USR1
trap 'asked=1' USR2
trap 'slurm=1' TERM
trap 'over=1' ALRM
trap 'killing=1' VTALRM
trap ':' WINCH

# If the attempt was submitted twice, the job that begins first gets it. `ln` is atomic on NFS, too.
echo "$SLURM_JOB_ID" > "claim.$SLURM_JOB_ID"
ln "claim.$SLURM_JOB_ID" claimed 2> /dev/null
rm -f "claim.$SLURM_JOB_ID"
read -r owner < claimed
if [ "$owner" != "$SLURM_JOB_ID" ]; then
    echo "moorings: job $owner runs this, so job $SLURM_JOB_ID has nothing to do" >&2
    exit 0
fi

await() { # a process of ours, and how many fifths of a second; its exit code, or 1
    looks=0
    while kill -0 "$1" 2> /dev/null; do
        [ "$looks" -lt "$2" ] || return 1
        looks=$((looks + 1))
        sleep 0.2 & wait "$!"
    done
    wait "$1"
}

remove_socket() { # of a terminal that was killed: the first task was on this node, too
    [ -n "$terminal" ] && read -r _ place 2> /dev/null < "terminal.$restart" || return
    case $place in
    /tmp/moorings-terminal-*/*) return ;;
    /tmp/moorings-terminal-*) ;;
    *) return ;;
    esac
    # Another user may have put a link there once it was gone. No other user can replace one's own folder in /tmp.
    [ ! -L "$place" ] && [ -O "$place" ] && rm -f "$place/terminal" && rmdir "$place" 2> /dev/null
}

finish() { # reason of the stop
    remove_socket
    printf 'restart=%s\nstop=%s\n' "$restart" "$1" > done.draft && mv -f done.draft done
    [ -n "$reporter" ] || return 0
    kill -s WINCH "$reporter" 2> /dev/null # what could not be sent stays here, for the person's next moor
    await "$reporter" 50
    reporter=''
}

# Requeued after its end: do nothing twice.
[ -e end.json ] && exit 0
if [ -e done ]; then
    grep -q '^stop=slurm$' done || exit 0
    rm -f done
fi
rm -rf tasks unattended
mkdir -p tasks logs
if [ -n "$reports" ]; then
    (exec "$python" "$program" report "$attempt" "$restart" 2>> report.log) &
    reporter=$!
fi
if [ -e cancel ]; then
    finish asked
    exit 0
fi

later() { # seconds, signal for this shell
    (
        trap 'kill "$nap" 2> /dev/null; exit' TERM
        sleep "$1" & nap=$!
        wait "$nap" && kill -s "$2" $$
    ) &
    timers="$timers $!"
}

again() { # seconds: wake up regularly, because a signal between a check and `wait` is not noticed
    (
        trap 'kill "$nap" 2> /dev/null; exit' TERM
        while :; do
            sleep "$1" & nap=$!
            wait "$nap" && kill -s WINCH $$ || exit
        done
    ) &
    timers="$timers $!"
}

# A job that ends with a code other than 0 after a request to yield resumes later. The agent's record of the request
# tells it from the warning before a time limit.
must_yield() {
    case $(squeue --noheader --jobs="$SLURM_JOB_ID" --Format=admin_comment:200) in
    *" asked=$restart@"*) ;;
    *) return 1 ;;
    esac
}

warn_tasks() { # the programs that handle one of the signals; if a node cannot do that, all of them
    signals=$limit_signals
    must_yield && signals=$yield_signals
    if "$python" "$program" check 2>> looks.log; then
        printf '%s\n' "$signals" > warn.draft && mv -f warn.draft "warn.$restart"
        looks=0
        while [ "$looks" -lt 20 ]; do # a node's program may be on its way
            n_nodes=0
            for node in "hears.$restart".*; do
                [ -e "$node" ] && n_nodes=$((n_nodes + 1))
            done
            [ "$n_nodes" -lt "$SLURM_JOB_NUM_NODES" ] || return
            looks=$((looks + 1))
            sleep 1
        done
    fi
    scancel --signal="$plain_signal" "$SLURM_JOB_ID"
}

# What looks at the checkpoints runs in the background, so that signals are noticed meanwhile; no disk holds the job up.
looks() { # begin or watch
    exec "$python" "$program" "$1" "$attempt" "$restart" 2>> looks.log
}

unseen() { # exit code: says why nobody looks at the checkpoints
    case $1 in
    9 | 126 | 127) why="has no Python 3.11 called $python ([slurm] python names one)" ;;
    *) why="cannot look at the checkpoints: see looks.log in $attempt" ;;
    esac
    printf 'node %s %s' "$SLURMD_NODENAME" "$why" > unseen.draft && mv -f unseen.draft unseen
}

stop_watching() { # the last look comes before the record of the end
    [ -n "$watcher" ] || return
    kill -s WINCH "$watcher" 2> /dev/null
    await "$watcher" 50
    watcher=''
}

act() {
    if [ -z "$stop" ]; then
        if [ -n "$failed" ]; then stop=failed
        elif [ -n "$asked" ]; then stop=asked
        elif [ -n "$slurm" ]; then stop=slurm
        elif [ -n "$over" ]; then stop=limit
        elif [ -n "$warn_now" ] && [ -z "$warned" ]; then
            warned=1
            warn_tasks &
            timers="$timers $!"
        fi
    fi
    [ -n "$stop" ] || return
    if [ -z "$ended" ]; then
        [ -z "$terminal" ] || scancel --signal=HUP "$step" # an interactive shell ignores TERM
        if [ "$stop" = slurm ]; then ended=1 # Slurm signals the tasks itself
        elif scancel --signal=TERM "$SLURM_JOB_ID"; then
            ended=1
            later "$grace" VTALRM
        fi
    fi
    [ -z "$killing" ] || scancel --signal=KILL "$step"
}

if [ -n "$watched" ]; then
    rm -f unseen
    (looks begin) &
    if await "$!" 150; then
        (looks watch) &
        watcher=$!
    else
        unseen "$?"
    fi
    if [ -n "$asked" ] || [ -e cancel ]; then
        stop_watching
        finish asked
        exit 0
    elif [ -n "$slurm" ]; then
        stop_watching
        finish slurm
        exit 1
    fi
fi

# srun reports each failed task on stderr, at once. The tasks open their logs themselves: Slurm would write
# "STEP CANCELLED" into their output.
{
    (
        umask "$usual"
        exec srun --ntasks="$tasks" --cpus-per-task="$cpus" --export=NONE --input=none --wait=0 --kill-on-bad-exit=0 \
            --output="$attempt/step.log" --open-mode=append /bin/sh "$attempt/task.sh" "$restart" "$python" 2>&1 > /dev/null
    )
    echo "$?" > srun
} | while IFS= read -r line; do
    printf '%s\n' "$line" >&2
    case $line in
    *": task "* | *": tasks "*) kill -s PROF $$ ;;
    esac
done &
reader=$!
[ -z "$limit" ] || later "$limit" ALRM
[ -z "$warn" ] || later "$warn" USR1
again 5
while :; do
    act
    wait "$reader"
    kill -0 "$reader" 2> /dev/null || break
done
read -r code < srun
left_alone() { # whether every task ended by itself
    n_left=0
    for told in tasks/*[0-9]; do
        [ -e "$told" ] && read -r left < "$told" && [ "${left:-255}" -le 128 ] && n_left=$((n_left + 1))
    done
    [ "$n_left" -eq "$tasks" ]
}

case $stop in
'' | failed) [ ! -e unattended ] || stop=asked ;; # its terminal has stopped it
esac
case $stop in
'' | failed)
    if [ -n "$warned" ] && [ "${code:-1}" -ne 0 ] && [ -z "$slurm" ] && must_yield; then
        stop_watching
        finish slurm
        if scontrol requeue "$SLURM_JOB_ID"; then
            kill $timers 2> /dev/null
            while [ -z "$slurm" ]; do # Slurm ends this script now
                sleep 1 & wait "$!"
            done
            exit 1
        fi
    fi
    ;;
esac

# If Slurm ends a job (requeue, node down) the tasks may be gone before this shell gets a signal, and (24.11) before
# Slurm itself says so. So if a signal ended a task, wait a moment, then ask Slurm.
case $stop in
'' | failed)
    left_alone || { sleep 1 & wait "$!"; }
    state=$(squeue --noheader --states=all --jobs="$SLURM_JOB_ID" --format=%T) || state=RUNNING
    [ -z "$slurm" ] && [ "$state" = RUNNING ] || stop=slurm
    ;;
esac
stop_watching
finish "${stop:-none}"
kill $timers 2> /dev/null
wait $timers # not for a look that hangs with its disk
exit "${code:-1}"
