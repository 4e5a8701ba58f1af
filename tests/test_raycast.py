"""The ray caster against geometry done by hand, and the maze frames it draws."""

import math

import numpy as np
import pytest
import torch

from kbr.core.datasets.raycast import Scene, cast, draw
from kbr.core.errors import KbrError

FLOOR, SKY = 4, 5  # in the scenes below: walls of four colours, floor, four sides of sky
COLOURS = [
    (250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0),
    (100, 50, 0),
    (10, 10, 100), (20, 20, 100), (30, 30, 100), (40, 40, 100),
]  # fmt: skip


def room(inner=3, fog=math.inf):
    """A square room whose walls met going +x, -x, +y, -y have colours 0, 1, 2, 3."""
    solid = torch.ones(inner + 2, inner + 2, dtype=torch.bool)
    solid[1:-1, 1:-1] = False
    walls = torch.arange(4).expand(inner + 2, inner + 2, 4)
    textures = torch.tensor(COLOURS, dtype=torch.uint8)[:, :, None, None].expand(-1, 3, 8, 8)
    return Scene(solid=solid, walls=walls, textures=textures, fog=fog)


def slow_hit(scene, position, angle, step=1e-4):
    """March along a ray in tiny steps until a cell is solid."""
    x, y = position
    distance = 0.0
    while not scene.solid[math.floor(x), math.floor(y)]:
        distance += step
        x = position[0] + distance * math.cos(angle)
        y = position[1] + distance * math.sin(angle)
    return distance


def test_rays_stop_where_marching_stops():
    """Also with pillars inside the room and at awkward angles."""
    scene = room(inner=5)
    scene.solid[3, 3] = scene.solid[2, 4] = True
    angles = torch.tensor([0.0, 0.3, 0.79, 1.57, 2.0, 2.9, -0.4, -1.2, -2.2, -3.1])
    ray = torch.stack([angles.cos(), angles.sin()], dim=-1)
    hit = cast(scene, (1.7, 2.4), ray)
    marched = [slow_hit(scene, (1.7, 2.4), float(angle)) for angle in angles]
    torch.testing.assert_close(hit.depth, torch.tensor(marched), rtol=0, atol=1e-3)


def test_rays_along_the_axes_meet_the_right_sides():
    ray = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    hit = cast(room(), (2.25, 2.5), ray)
    assert hit.texture.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(hit.depth, torch.tensor([1.75, 1.25, 1.5, 1.5]))


def test_textures_are_not_mirrored():
    """A little to the left of the middle of the view is less far across the texture."""
    for degrees in (0, 90, 180, 270):
        angle = math.radians(degrees)
        slopes = torch.tensor([-0.1, 0.0, 0.1])  # left to right
        forward, right = (math.cos(angle), math.sin(angle)), (math.sin(angle), -math.cos(angle))
        ray = torch.tensor(forward) + slopes.unsqueeze(-1) * torch.tensor(right)
        across = cast(room(), (2.5, 2.5), ray).across
        torch.testing.assert_close(across, torch.tensor([0.35, 0.5, 0.65]), rtol=0, atol=1e-4)


def test_perspective_by_hand():
    """A wall 1.5 away, seen from half its height: 1/3 of slope up and down, at any column."""
    images = draw(room(), (2.5, 2.5), torch.tensor([0.0]), height=90, width=120)
    picture = images[0].permute(1, 2, 0)
    slope = (torch.arange(90) - 44.5) * 2 / 120  # downwards; 90 degrees across
    is_wall = slope.abs() < 1 / 3
    for column in (0, 40, 60, 119):
        line = picture[:, column]
        assert (line[is_wall] == torch.tensor([250, 0, 0])).all()
        assert (line[slope > 1 / 3] == torch.tensor([100, 50, 0])).all()
        assert (line[slope < -1 / 3] == torch.tensor([10, 10, 100])).all()


def test_walls_light_differs_by_side_and_headings_run_counter_clockwise():
    """Facing 0, 90, 180, 270 degrees: +x, +y, -x, -y."""
    yaw = torch.tensor([0.0, 90.0, 180.0, -90.0])
    middle = draw(room(), (2.5, 2.5), yaw, height=9, width=9)[:, :, 4, 4]
    assert (middle > 0).tolist() == [
        [True, False, False], [False, False, True], [False, True, False], [True, True, False],
    ]  # fmt: skip
    assert middle.amax(1).tolist() == [250, 230, 240, 220]


def test_turning_left_moves_the_view_to_the_right():
    """The corner between two walls is further right after a turn to the left."""
    before, after = draw(room(), (2.5, 2.5), torch.tensor([30.0, 40.0]), height=31, width=120)
    edges = [int((image[0, 15] > 0).nonzero()[0]) for image in (before, after)]
    expected = [60 * (1 - math.tan(math.radians(45 - yaw))) for yaw in (30, 40)]
    assert edges == pytest.approx(expected, abs=1.01)


def test_fog_darkens_with_distance():
    near, far = (
        draw(room(fog=10.0), (x, 2.5), torch.tensor([0.0]), height=3, width=3)[0, 0, 1, 1]
        for x in (3.5, 1.5)
    )
    assert float(near) == pytest.approx(250 * math.exp(-0.05), abs=1)
    assert float(far) == pytest.approx(250 * math.exp(-0.25), abs=1)


def test_a_texture_is_seen_in_place():
    """A wall that is white in its upper left quarter only."""
    scene = room()
    textures = torch.zeros_like(scene.textures)
    textures[:4, :, :4, :4] = 255
    scene = Scene(solid=scene.solid, walls=scene.walls, textures=textures, fog=math.inf)
    image = draw(scene, (2.5, 2.5), torch.tensor([0.0]), height=240, width=240)[0, 0]
    white = image > 127
    rows, columns = (white.any(1).nonzero(), white[:, 80:160].any(0).nonzero() + 80)
    assert [int(rows[0]), int(rows[-1])] == pytest.approx([80, 119], abs=1)
    assert [int(columns[0]), int(columns[-1])] == pytest.approx([80, 119], abs=1)


def test_any_resolution_and_no_seams_between_chunks(monkeypatch):
    yaw = torch.arange(7) * 50.0
    whole = draw(room(), (2.2, 2.7), yaw, height=5, width=8)
    monkeypatch.setattr("kbr.core.datasets.raycast.CHUNK", 1)
    assert (whole == draw(room(), (2.2, 2.7), yaw, height=5, width=8)).all()
    assert draw(room(), (2.2, 2.7), yaw, height=1, width=1).shape == (7, 3, 1, 1)


def test_looking_up_steeply_shows_sky():
    """Tall pictures look higher than the sides of the sky reach."""
    yaw = torch.arange(8) * 45.0
    top = draw(room(), (2.5, 2.5), yaw, height=60, width=10)[:, :, 0]
    assert (top[:, 2] == 100).all()
    assert top[0, 0, 5] == 10


def test_nobody_stands_inside_a_wall():
    with pytest.raises(KbrError, match="free cell"):
        draw(room(), (0.5, 2.5), torch.tensor([0.0]), height=3, width=3)


def test_open_mazes_and_odd_textures_are_refused():
    scene = room()
    with pytest.raises(KbrError, match="closed"):
        Scene(solid=torch.zeros(3, 3, dtype=torch.bool), walls=scene.walls[:3, :3],
              textures=scene.textures)  # fmt: skip
    with pytest.raises(KbrError, match="side of 2, 4, 8"):
        Scene(solid=scene.solid, walls=scene.walls, textures=scene.textures[..., :5, :5])


class TestMazeFrames:
    @pytest.fixture(autouse=True)
    def _needs_labmaze(self):
        pytest.importorskip("labmaze", reason="the built-in frames need labmaze")

    @pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
    def test_a_noisy_frame_tells_the_heading(self, seed):
        """The nearest frame at 36 x 48 with pixel noise .1 is within 5 degrees for 95 %."""
        from kbr.app.tasks.frames import resized
        from kbr.app.tasks.maze_frames import draw_maze

        images, yaw = draw_maze(seed=seed, count=180)
        x = resized(images, height=36, width=48).flatten(1)
        noisy = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        found = yaw[torch.cdist(noisy, x).argmin(1).numpy()]
        error = np.abs((found - yaw + 180) % 360 - 180)
        assert (error <= 5).mean() >= 0.95

    def test_the_seed_decides(self):
        from kbr.app.tasks.maze_frames import draw_maze

        first, again, other = (
            draw_maze(seed=s, count=6, height=18, width=24)[0] for s in (3, 3, 4)
        )
        assert (first == again).all()
        assert (first != other).any()
        assert first.shape == (6, 18, 24, 3)

    def test_frames_are_drawn_once(self, tmp_path, monkeypatch):
        from kbr.app.tasks import maze_frames

        first = maze_frames.maze_frames(seed=0, count=5, cache=tmp_path)
        (path,) = tmp_path.iterdir()
        assert "0_5x72x96" in path.name
        drawn = maze_frames.draw_maze
        monkeypatch.setattr(maze_frames, "draw_maze", None)
        second = maze_frames.maze_frames(seed=0, count=5, cache=tmp_path)
        assert (first[0] == second[0]).all()
        assert (first[1] == second[1]).all()
        monkeypatch.setattr(maze_frames, "draw_maze", drawn)

    @pytest.mark.parametrize("damage", [b"", b"nonsense", None])
    def test_a_damaged_cache_is_drawn_again(self, tmp_path, damage):
        from kbr.app.tasks.maze_frames import maze_frames

        first, _ = maze_frames(seed=0, count=5, cache=tmp_path)
        (path,) = tmp_path.iterdir()
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
        second, _ = maze_frames(seed=0, count=5, cache=tmp_path)
        assert (first == second).all()
        assert len(path.read_bytes()) == len(whole)

    def test_mistakes_are_named(self, tmp_path):
        from kbr.app.tasks.maze_frames import maze_frames

        with pytest.raises(KbrError, match=r"data\.n_frames"):
            maze_frames(seed=0, count=1, cache=tmp_path)
        with pytest.raises(KbrError, match=r"data\.maze_seed"):
            maze_frames(seed=-1, count=5, cache=tmp_path)


def test_without_labmaze_the_message_says_what_to_install(tmp_path, monkeypatch):
    import sys

    from kbr.app.tasks.maze_frames import maze_frames

    monkeypatch.setitem(sys.modules, "labmaze", None)
    with pytest.raises(KbrError, match=r"kbr\[maze\].*data\.frames"):
        maze_frames(seed=0, count=5, cache=tmp_path)
