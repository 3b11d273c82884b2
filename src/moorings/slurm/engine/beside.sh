# A command beside the tasks of a run, as a step of its job, in bash: with the variables of the first task, from the
# kernel, and in the run's working folder. The arguments: the run, the folder, TERM (empty: no terminal), the command.
#
# The first task's own step has its GCDs. This step leases none, so the variables are taken as they are.
run=$1 folder=$2 term=$3
shift 3
found=''
for each in /proc/[0-9]*/environ; do
    { mapfile -d '' -t variables < "$each"; } 2> /dev/null || continue
    n_same=0
    for variable in "${variables[@]}"; do
        case $variable in
        "MOORINGS_RUN_ID=$run" | "SLURM_JOB_ID=$SLURM_JOB_ID" | SLURM_PROCID=0) n_same=$((n_same + 1)) ;;
        esac
    done
    [ "$n_same" = 3 ] && found=1 && break
done
if [ -z "$found" ]; then
    echo "moorings: the first task of run $run is not on this node any more" >&2
    exit 1
fi
cd "$folder" || exit 126
exec env -i "${variables[@]}" ${term:+"TERM=$term"} "$@"
