"""The parts of the ssh script that are the same for every job; they use $ssh, $host, $there, $here and $every."""

HELPERS = """\
say() { printf 'onecard: %s\\n' "$1"; }
fail() { say "$1" >&2; exit 1; }
connect() { $ssh "$host" "$@"; } # $ssh is several words
state() { # running, done CODE, or idle
  connect "cd $there 2>/dev/null || { echo idle; exit; }
    if [ -f job.pid ] && kill -0 \\$(cat job.pid) 2>/dev/null; then echo running
    elif [ -s job.code ]; then echo done \\$(cat job.code); else echo idle; fi" </dev/null
}
send_folder() { # FROM TO NAME…
  say "sending $1"
  from=$1 to=$2
  shift 2
  connect "mkdir -p $there/$to" </dev/null || fail 'there is no connection'
  if [ "$rsync" = yes ]; then
    (cd "$from" && rsync -a --exclude=__pycache__ -e "$ssh" "$@" "$host:$there/$to/")
  else
    tar -C "$from" --exclude=__pycache__ -cf - "$@" | connect "tar -C $there/$to -xf -"
  fi || fail "$from could not be sent"
}
send_file() { # FROM TO
  say "sending $1"
  connect "mkdir -p $there/$(dirname "$2") && cat > $there/$2" <"$1" || fail "$1 could not be sent"
}
fetch() { # the run's folder as it is there: checkpoints first, so that the log is never behind them
  if [ "$rsync" = yes ]; then
    mkdir -p "$here" || return
    rsync -a --delete --exclude='.*' -e "$ssh" "$host:$there/run/checkpoints" "$here/" 2>/dev/null
    rsync -a --exclude=/checkpoints --exclude=run.lock --exclude='.*' -e "$ssh" "$host:$there/run/" "$here/" 2>/dev/null
  else
    rm -rf "$here.incoming" && mkdir -p "$here.incoming" || return
    connect "cd $there/run && tar --exclude=run.lock -cf - ." </dev/null 2>/dev/null |
      tar -C "$here.incoming" -xf - 2>/dev/null || return
    rm -rf "$here.before"
    if [ -d "$here" ]; then mv "$here" "$here.before"; fi
    mv "$here.incoming" "$here" && rm -rf "$here.before"
  fi
  code=$?
  if [ -d "$here" ]; then echo "$host:$there" >"$here/launched"; fi
  return "$code"
}
if [ -e "$here/run.json" ] && [ "$(cat "$here/launched" 2>/dev/null)" != "$host:$there" ]; then
  fail "$here holds another run; nothing was done"
fi
if [ "${1-}" = stop ]; then
  connect "kill -TERM \\$(cat $there/train.pid)" || fail 'it could not be asked to stop'
  say 'asked to save and end'
  exit 0
fi
"""

START = """\
say 'starting the job there'
# nohup lets the job outlive the connection
connect "cd $there && rm -f job.code train.pid &&
  { nohup sh ./job.sh >>job.log 2>&1 </dev/null & echo \\$! >job.pid; }" </dev/null || fail 'the job could not be started'
"""

WATCH = """\
connect "mkdir -p $there" </dev/null || fail "$host cannot be reached by ssh"
rsync=no
if command -v rsync >/dev/null && connect 'command -v rsync' </dev/null >/dev/null; then rsync=yes; fi
found=$(state)
case $found in
  running) say 'the job runs there already: looking on' ;;
  'done 0') say 'the job is finished there' ;;
  *) start ;;
esac
if [ "$found" != 'done 0' ]; then
  say "the run comes to $here every $every s; Ctrl-C ends looking on, not the job"
fi
lost=no
while :; do
  now=$(state) || now=lost
  case $now in
    running)
      lost=no
      fetch
      ;;
    done*) break ;;
    idle)
      fetch
      fail 'the job ended without a word (was the machine restarted?); start this script again to continue'
      ;;
    *)
      [ "$lost" = yes ] || say 'no connection; trying again'
      lost=yes
      ;;
  esac
  sleep "$every"
done
fetch || { sleep 5; fetch; } || say "the run could not be copied; it is in $there on $host"
code=${now#done }
if [ "$code" -ne 0 ]; then
  connect "tail -n 20 $there/job.log" </dev/null
  say "the job ended with code $code; start this script again to continue from its last checkpoint" >&2
  exit "$code"
fi
say "finished; the run is in $here. The machine is still rented: end that with its provider"
"""
