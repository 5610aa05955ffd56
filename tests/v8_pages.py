"""Pages of the simulated v8 shop as text, from `observation_state` alone (shopsimrl.md 1.7)."""

from v8_shop import Json

PAGE_NAMES = {
    "search_home": "商城首页",
    "search_results": "搜索结果",
    "product_detail": "商品详情",
    "terminal": "已结束",
}
FACTS = ("标题", "编号", "价格", "店铺", "类目", "属性")


def rendered(state: Json) -> str:
    """The page as text, a function of the state alone (1.7)."""
    blocks = [[f"【{PAGE_NAMES[state['page_type']]}】"]]
    if "products" in state:
        span = f"第{state['rank_start']}-{state['rank_end']}个，共{state['total_results']}个"
        blocks[0] += [f"查询：{state['search_text']}", f"第{state['page']}/{state['total_pages']}页，{span}"]
        lines = [line for item in state["products"] for line in listed(item)]
        blocks.append(["商品列表", *(lines or ["没有商品"])])
    if "product" in state:
        item, chosen = state["product"], state["selected_options"]
        price = state.get("selected_price", item["price"])
        facts = [item["title"], item["asin"], price, item["brand"], item["category"], "；".join(item["key_attributes"])]
        blocks[0] += [f"- {name}：{fact}" for name, fact in zip(FACTS, facts, strict=True)]
        blocks.append(["规格"])
        for axis, choices in state["available_options"].items():
            blocks[-1] += [f"- {axis}：{chosen.get(axis, '未选择')}", f"  可选：{' / '.join(choices)}"]
        missing = state["missing_option_axes"]
        blocks[-1].append(f"还需选择：{'、'.join(missing)}" if missing else "规格已选全")
    if state["page_type"] == "terminal":
        blocks[0].append("没有更多操作。")
    if last := state.get("last_action"):
        code = [] if last["reason"] == "executed" else [f"原因：{last['reason']}"]
        blocks.append(["上一步", "结果：" + ("有效" if last["valid"] else "无效"), last["message"], *code])
    capabilities = ["可以搜索"] * state["search_available"]
    capabilities += ["可以点击：", *(f"- {action}" for action in state["actions"])] if state["actions"] else []
    blocks.append(capabilities or ["没有可用操作"])
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def listed(item: Json) -> list[str]:
    facts = {"编号": item["asin"], "价格": item["price"], "店铺": item["brand"], "类目": item["category"]}
    facts["属性"] = "；".join(item["key_attributes"])
    return [f"{item['rank']}. {item['title']}", *(f"   {name}：{fact}" for name, fact in facts.items())]
