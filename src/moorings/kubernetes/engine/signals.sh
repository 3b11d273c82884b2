# Sends a signal to a task: $1 its name, $2 its number, $3 "listeners": only to processes that listen to it.
# The words of `moor run` mean the same everywhere: whoever listens gets it, and if nobody does, the task's own process.
# The Pod's processes share their process ids; those of this container have our root. Only what a shell can do itself is
# done: an image may have no other program.
main='' told=''
for dir in /proc/[0-9]*; do
    pid=${dir#/proc/}
    [ "$pid" != "$$" ] && [ "$dir/root" -ef "/proc/$$/root" ] || continue
    parent='' caught=''
    while read -r key value rest; do
        case $key in
        PPid:) parent=$value ;;
        SigCgt:) caught=$value ;;
        esac
    done < "$dir/status" 2> /dev/null
    if [ "$parent" = 0 ] && { [ -z "$main" ] || [ "$pid" -lt "$main" ]; }; then main=$pid; fi
    low=${caught#????????}
    if [ -n "$low" ] && [ $((0x$low >> ($2 - 1) & 1)) = 1 ]; then
        kill -s "$1" "$pid" 2> /dev/null && told=1
    fi
done
[ -n "$main" ] || exit 3
[ -n "$told" ] || [ "$3" = listeners ] || kill -s "$1" "$main"
