"""What a person is told before the first question: what leaves the machine, how much, and what it costs."""

from __future__ import annotations

from ....data_modules.errors import UserError
from ...numerals import counted
from .opening import PromptedJudge
from .prices import AS_OF
from .session import Plan, shown_request, what_leaves


def notice(judge: PromptedJudge, plan: Plan, passes: int) -> str:
    """Several lines: where questions go, what is in them, how many, and the estimate.

    Args:
        judge: Who is asked.
        plan: Of one pass.
        passes: Over the pairs: one, and one for each listening check.
    """
    session, missing = judge.session, plan.missing
    lines = [f"{judge.name} asks {session.provider.place}{session.provider.told}"]
    if session.provider.free:
        lines.append(f"  nothing leaves this machine, and nothing is paid; answers: {session.manner.mode}")
    elif plan.example is not None:
        clips, texts = what_leaves(plan.example)
        words = "our instructions" if session.manner.asking.hears == "audio" else "our instructions and transcripts"
        situation = ", the text about the situation" if any(text.startswith("Situation: ") for text in texts) else ""
        lines.append(f"  leaves this machine: {counted(clips, 'clip')} for each question (WAV), {words}{situation}")
        lines.append("  stays here: names, ids, systems, ratings, tags, file names" + _examples(judge))
    again = "" if passes == 1 else f", for each of {passes} passes (listening checks change the clips)"
    kept = plan.jobs - missing.requests - plan.unusable
    lines.append(
        f"  requests: {missing.requests:,} to send, {kept:,} answered before{again}; "
        f"{missing.seconds / 60:.1f} min of audio, {missing.megabytes:.1f} MB"
    )
    if plan.unusable:
        lines.append(f"  {plan.unusable:,} questions cannot be asked: their clips cannot be used")
    if not session.provider.free:
        lines.append(f"  estimate: {_dollars(judge, plan, passes)}")
    return "\n".join(lines)


def _examples(judge: PromptedJudge) -> str:
    count = judge.session.manner.asking.examples
    return f"; but for the mean ratings of {count} examples" if count else ""


def _dollars(judge: PromptedJudge, plan: Plan, passes: int) -> str:
    dollars, session = plan.missing.dollars, judge.session
    if dollars is None:
        return "no price is known of this model (price=TEXT_IN:AUDIO_IN:OUT in the spec, dollars for a million tokens)"
    limit = "" if session.bill.budget is None else f", budget ${session.bill.budget:.2f}"
    prices = "as given" if session.manner.asking.price else f"as of {AS_OF}"
    return f"${passes * dollars:.2f} (prices {prices}){limit}"


def example_request(judge: PromptedJudge, plan: Plan) -> str:
    """The first request, whole but for its audio."""
    if plan.example is None:
        return f"{judge.name}: there is nothing to ask"
    return shown_request(judge.session.provider, plan.example)


def check_budget(judge: PromptedJudge, plan: Plan) -> None:
    """Whoever spends money says how much.

    Raises:
        UserError: If requests would cost money, or might, and there is no budget.
    """
    session, missing = judge.session, plan.missing
    if session.provider.free or not missing.requests:
        return
    if session.bill.price is None:
        if not session.provider.elsewhere:
            raise UserError(
                f"judge {judge.name}: no price is known of this model, so that no budget can be kept; accepted: "
                "price=TEXT_IN:AUDIO_IN:OUT in the spec, dollars for a million tokens"
            )
    elif missing.dollars and session.bill.budget is None:
        raise UserError(
            f"judge {judge.name}: {missing.requests:,} requests would cost about ${missing.dollars:.2f}; accepted: "
            "--budget DOLLARS"
        )
