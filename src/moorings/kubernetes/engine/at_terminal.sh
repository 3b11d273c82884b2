# Starts the program of an interactive run once somebody is at its terminal: they would not see what it printed before.
# A terminal of a container has no size until the first kubectl attaches. Tasks but the first have no input.
[ "${RANK:-0}" = 0 ] || exec "$@" < /dev/null
attached=''
trap 'attached=1' WINCH
while [ -z "$attached" ] && [ -t 0 ] && command -v stty > /dev/null; do
    case $(stty size 2> /dev/null) in
    '' | '0 0') sleep 0.2 ;; # busybox has an error for no size
    *) break ;;
    esac
done
trap - WINCH
exec "$@"
