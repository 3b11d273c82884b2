# Sends a signal to a task: $1 choices, each NAME:NUMBER; $2 "listeners": only to processes with a handler for it.
# As on every engine, each process with a handler for the first choice that has any gets it, and if there is none, the
# task's own process gets the first choice.
# The Pod's containers share their process ids; processes of this container have our root. It uses only the shell itself:
# an image may have no other program.
main='' told=''
for choice in $1; do
    name=${choice%:*} number=${choice#*:}
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
        if [ -n "$low" ] && [ $((0x$low >> (number - 1) & 1)) = 1 ]; then
            kill -s "$name" "$pid" 2> /dev/null && told=1
        fi
    done
    [ -z "$told" ] || exit 0
done
[ -n "$main" ] || exit 3
[ "$2" = listeners ] || kill -s "${1%%:*}" "$main"
